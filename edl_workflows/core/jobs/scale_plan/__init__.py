"""ScalePlan: the request to change a running ElasticJob, and the record of how it was carried out."""
