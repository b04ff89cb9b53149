"""Parts of ``bench_gpu.py``: what is run, on which models, what it is compared with, how it is
shown."""
