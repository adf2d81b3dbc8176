"""``tf.compat.v1`` graphs, for the adapter of parameter servers
(`edl_workflows.training.frameworks.tensorflow`).

- `tf_partitions`: how variables are cut while a graph is built, and how cut tables are looked up
- `tf_graph`: the operations that initialize, save and restore a graph
- `tf_layout`: how variables are cut over the servers of a version; `tf_state`: them as whole tensors
- `tf_check`: compares a model before and after a switch of versions
- `tf_saved_model`: a program's graph in one process, with the values of a checkpoint
"""
