"""The calls that run on generators and trainers. Each is idempotent: it names the version it works on, the model is
held in the worker's process as a cache of that version, and a call that runs again after its answer was lost changes
nothing. torch is imported inside them: a flow, which only names them, does without, and starts in half the time."""
