"""The learning, no cluster in sight: problems, verifiers, sampler, losses, learner."""
