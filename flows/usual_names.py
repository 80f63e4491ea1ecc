"""What the options are called elsewhere: in TRL, verl, OpenRLHF, transformers and tools for any training."""

import difflib
from collections.abc import Iterable

# the last part of a name, in small letters with underscores, to the option here
USUAL_NAMES = {
    name: option
    for option, names in {
        "batch.prompts": "batch_size train_batch_size per_device_train_batch_size rollout_batch_size prompts_per_step",
        "batch.samples": "num_generations n group_size num_samples n_samples n_samples_per_prompt samples_per_prompt",
        "checkpoint.keep_last": "save_total_limit max_ckpt_to_keep max_actor_ckpt_to_keep",
        "cluster.generators": "num_workers num_rollout_workers num_generators rollout_workers",
        "cluster.scheduler": "scheduler address scheduler_address dask_address ray_address",
        "held_out": "test_size eval_size val_size validation_split num_eval holdout",
        "loss.clip": "epsilon clip_ratio cliprange clip_range eps_clip clip_eps",
        "loss.name": "loss_type adv_estimator advantage_estimator algorithm algo objective",
        "loss.ratio_cap": "importance_sampling_cap tis_imp_ratio_cap",
        "mix": "datasets data_mix",
        "optimizer.clip_norm": "max_grad_norm grad_clip max_norm clip_grad gradient_clipping gradient_clip_val",
        "optimizer.lr": "learning_rate actor_learning_rate lr_rate lr",
        "optimizer.microbatch_tokens": "ppo_max_token_len_per_gpu max_token_len_per_gpu max_tokens_per_gpu",
        "optimizer.name": "optim optimizer_name optimizer_type",
        "optimizer.warmup_steps": "num_warmup_steps lr_warmup_steps warmup_ratio lr_warmup_steps_ratio warmup",
        "policy.dtype": "torch_dtype precision bf16 fp16",
        "policy.model": "model_name_or_path model_name model_path model_id pretrain base_model",
        "problems": "dataset dataset_name train_dataset train_files train_file data data_path prompt_data",
        "problems.prompt": "prompt_key prompt_column input_key question_column",
        "problems.system": "system_prompt system_message",
        "problems.target": "answer_key label_key target_column answer_column ground_truth",
        "resume": "resume_from_checkpoint resume_from_path resume_mode",
        "run": "output_dir run_name experiment_name default_local_dir save_path",
        "samples": "k pass_k",
        "sampling.max_tokens": "max_completion_length max_new_tokens response_length max_response_length max_length "
        "generate_max_len max_gen_len",
        "sampling.temperature": "temp rollout_temperature",
        "staleness": "max_staleness off_policy_steps async_level max_async_level num_steps_off_policy",
        "steps": "max_steps num_steps total_steps total_training_steps num_train_steps epochs num_train_epochs "
        "total_epochs num_episodes iterations",
        "tracking.uri": "tracking_uri mlflow_uri report_to logger",
        "verifier": "reward_funcs reward_func reward_fn reward_function custom_reward_function reward grader",
        "verifier.seconds": "timeout reward_timeout verifier_timeout",
    }.items()
    for name in names.split()
}


def unknown(path: str, known: Iterable[str], what: str, dashes: str) -> str:
    """Says that `what` + `path` is unknown, with the known name that is probably meant: what others call so, the
    nearest, one of the same last part, what others call nearly so."""
    known = list(known)
    last = path.rpartition(".")[2].lower().replace("-", "_")
    usual = {name: option for name, option in USUAL_NAMES.items() if option in known}
    namesakes = [name for name in known if name.rpartition(".")[2] == last]
    near = (
        [usual[last]]
        if last in usual
        else difflib.get_close_matches(path, known, n=1)
        or difflib.get_close_matches(path, namesakes, n=1, cutoff=0)
        or [usual[name] for name in difflib.get_close_matches(last, usual, n=1, cutoff=0.8)]
    )
    return f"{what}{path}" + (f"; did you mean {dashes}{near[0]}?" if near else "")
