"""Small helpers that ship with the core, for the tests of plugins and of the core itself.

`families`: the model families ``tiny``, ``tiny-hybrid`` and ``scripted``. `checkpoints`: writes
their checkpoints. `null_platform`: a platform that needs no device. `toy`: an executor without
tensors. `toy_core`: the engine over it. `null_executor`: an executor that computes nothing.
`scripted_masks`: grammars that are functions.
"""
