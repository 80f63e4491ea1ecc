"""What the options are called elsewhere: in TRL, verl, OpenRLHF, transformers and tools for any training."""

import difflib
from collections.abc import Iterable

# the last part of a name, in small letters with underscores, to the option here
USUAL_NAMES = {
    name: option
    for option, names in {
        "batch.oversample": "refill",
        "batch.prompts": "batch_size train_batch_size per_device_train_batch_size rollout_batch_size prompts_per_step",
        "batch.samples": "num_generations n group_size num_samples n_samples n_samples_per_prompt samples_per_prompt",
        "checkpoint.every": "save_steps save_freq save_interval save_every",
        "checkpoint.keep_last": "save_total_limit max_ckpt_to_keep max_actor_ckpt_to_keep",
        "cluster.generators": "num_workers num_rollout_workers num_generators rollout_workers",
        "cluster.scheduler": "scheduler address scheduler_address dask_address ray_address",
        "evals": "eval_steps eval_strategy eval_dataset val_files test_freq eval_every eval_freq eval_interval",
        "held_out": "test_size eval_size val_size validation_split num_eval holdout",
        "loss.clip": "epsilon clip_ratio cliprange clip_range eps_clip clip_eps",
        "loss.dual_clip": "delta clip_ratio_c",
        "loss.mask_truncated": "mask_truncated_completions",
        "loss.overlong": "overlong_buffer overlong_buffer_len soft_punish_cache",
        "loss.name": "scale_rewards loss_type adv_estimator advantage_estimator algorithm algo objective",
        "loss.ratio_cap": "importance_sampling_cap tis_imp_ratio_cap",
        "mix": "datasets data_mix",
        "optimizer.clip_norm": "max_grad_norm grad_clip max_norm clip_grad gradient_clipping gradient_clip_val",
        "optimizer.betas": "adam_beta1 adam_beta2 adam_betas",
        "optimizer.decay": "lr_scheduler_type lr_scheduler lr_decay_style lr_schedule",
        "optimizer.lr": "learning_rate actor_learning_rate lr_rate lr",
        "optimizer.microbatch_tokens": "ppo_max_token_len_per_gpu max_token_len_per_gpu max_tokens_per_gpu",
        "optimizer.name": "optim optimizer_name optimizer_type",
        "optimizer.warmup_steps": "num_warmup_steps lr_warmup_steps warmup_ratio lr_warmup_steps_ratio warmup",
        "policy.dtype": "torch_dtype precision bf16 fp16",
        "policy.model": "model_name_or_path model_name model_path model_id pretrain base_model",
        "problems": "dataset dataset_name train_dataset train_files train_file data data_path prompt_data",
        "problems.prompt": "prompt_key prompt_column input_key question_column",
        "problems.system": "system_prompt system_message",
        "problems.template": "chat_template prompt_template",
        "problems.target": "answer_key label_key target_column answer_column ground_truth",
        "resume": "resume_from_checkpoint resume_from_path resume_mode",
        "run": "output_dir run_name experiment_name default_local_dir save_path",
        "sampling.stop": "stop_strings stop_sequences stop_token_ids",
        "seed": "data_seed random_seed",
        "samples": "k pass_k",
        "sampling.max_tokens": "max_completion_length max_new_tokens response_length max_response_length max_length "
        "generate_max_len max_gen_len",
        "sampling.temperature": "temp rollout_temperature",
        "staleness": "max_staleness off_policy_steps async_level max_async_level num_steps_off_policy",
        "steps": "max_steps num_steps total_steps total_training_steps num_train_steps epochs num_train_epochs "
        "total_epochs num_epochs max_epochs num_episodes iterations",
        "tracking.uri": "tracking_uri mlflow_uri report_to logger",
        "verifier": "reward_funcs reward_func reward_fn reward_function custom_reward_function reward grader",
        "verifier.seconds": "timeout reward_timeout verifier_timeout",
    }.items()
    for name in names.split()
}


# what there is nothing for, to why
NOT_HERE = {
    name: reason
    for reason, names in {
        "no KL to a reference model is in the loss; loss.clip and loss.dual_clip bound each update": "beta kl_coef "
        "kl_loss_coef init_kl_coef use_kl_loss use_kl_in_reward kl_loss_type kl_penalty sync_ref_model ref_model "
        "ref_model_mixup_alpha ref_model_sync_steps target_kl",
        "metrics go to MLflow (tracking.uri); nothing is sent to other services": "wandb wandb_project "
        "project_name use_wandb tensorboard log_completions",
        "prompts are never cut; one that is too long for the model is named before a run begins": "max_prompt_length "
        "max_source_length prompt_max_len max_seq_length filter_overlong_prompts truncation",
        "completions are drawn from the whole distribution: a cut one would make the ratios wrong": "top_p top_k min_p "
        "repetition_penalty presence_penalty frequency_penalty do_sample",
        "a step is one optimizer step over its batch, in parts of optimizer.microbatch_tokens": "num_iterations "
        "ppo_epochs ppo_mini_batch_size gradient_accumulation_steps mini_batch_size steps_per_generation "
        "ppo_micro_batch_size_per_gpu per_device_eval_batch_size num_mini_batches",
        "generation is this project's own, on workers with the tag GENERATOR": "use_vllm vllm_mode "
        "vllm_gpu_memory_utilization gpu_memory_utilization vllm_server_host vllm_server_port "
        "vllm_tensor_parallel_size tensor_model_parallel_size use_transformers_paged cache_implementation",
        "trained is one whole model on one trainer; there are no adapters, shards or quantized weights": "peft_config "
        "use_peft lora_r lora_rank lora_alpha lora_target_modules target_modules load_in_4bit load_in_8bit deepspeed "
        "fsdp fsdp_config zero_stage n_gpus_per_node nnodes",
        "activations are not recomputed; optimizer.microbatch_tokens bounds the memory": "gradient_checkpointing "
        "enable_gradient_checkpointing",
        "groups whose rewards are all equal are always replaced (batch.oversample)": "dynamic_sampling filter_groups",
        "a critic is not needed: the baseline is the mean of the group": "critic value_model gae gae_lambda lam gamma "
        "critic_warmup value_loss_coef vf_coef",
    }.items()
    for name in names.split()
}


def is_file_of_problems(word: str) -> bool:
    """Whether a word looks like a file of problems, or a pattern of such files."""
    name = word.lower().removesuffix(".gz")
    return name.endswith((".csv", ".tsv", ".json", ".jsonl", ".parquet"))


def unknown(path: str, known: Iterable[str], what: str, dashes: str) -> str:
    """Says that `what` + `path` is unknown, with the known name that is probably meant: what others call so, the
    nearest, one of the same last part, what others call nearly so; or why there is nothing of the kind."""
    known = list(known)
    last = path.rpartition(".")[2].lower().replace("-", "_")
    usual = {name: option for name, option in USUAL_NAMES.items() if option in known}
    if last in NOT_HERE and last not in usual:
        return f"{what}{path}: {NOT_HERE[last]}"
    namesakes = [name for name in known if name.rpartition(".")[2] == last]
    near = (
        [usual[last]]
        if last in usual
        else difflib.get_close_matches(path, known, n=1)
        or difflib.get_close_matches(path, namesakes, n=1, cutoff=0)
        or [usual[name] for name in difflib.get_close_matches(last, usual, n=1, cutoff=0.8)]
    )
    return f"{what}{path}" + (f"; did you mean {dashes}{near[0]}?" if near else "")
