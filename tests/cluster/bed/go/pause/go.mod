module edl-workflows/testbed/pause

go 1.24
