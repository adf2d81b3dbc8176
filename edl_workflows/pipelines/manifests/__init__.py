"""Manifests that users write: read within bounds (`manifest`), compared with those of earlier
attempts (`manifest_diff`), and submitted with the programs that travel with them (`travelling`)."""
