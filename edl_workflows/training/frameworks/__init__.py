"""The adapters of training frameworks. Each imports its framework, so each must be imported separately.

- `tensorflow`: ``tf.compat.v1`` programs with parameter servers, over the graphs of `tf1`
- `saved_model`: checkpoints outside of their jobs
- `tensorflow_collective`: an elastic ``MultiWorkerMirroredStrategy``
- `keras`: ``fit`` of Keras, with all-reduce or parameter servers (`keras_model`, `keras_servers`)
- `torch_collective`: data-parallel PyTorch (`torch_state`, `torch_parts`, `torch_shards`); `torch_replica`:
  groups of workers that hold the model together; `torch_copies`: from and to a GPU
- `hugging_face`, `lightning`: libraries with a training loop of their own (`trainer_loop`)
"""
