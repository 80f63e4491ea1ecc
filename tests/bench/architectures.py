"""Small random models of the architectures that people train."""

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

# widths that every kind of layer can be built with; the weights are large enough that a mistake shows
COMMON = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
OLD = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.2}
SEED = 0


@dataclass(frozen=True)
class Architecture:
    """One row: what people call it, its class of configuration, and what differs from COMMON."""

    name: str
    config: str
    changes: dict[str, Any]


def _of(name: str, config: str, **changes: Any) -> Architecture:
    return Architecture(name, config, changes)


MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": None,
    "num_key_value_heads": 4,
}
ARCHITECTURES = (
    _of("GPT-2", "GPT2Config", **OLD),
    _of(
        "GPT-Neo",
        "GPTNeoConfig",
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=256,
    ),
    _of("GPT-J", "GPTJConfig", **OLD, rotary_dim=4),
    _of("CodeGen", "CodeGenConfig", **OLD, rotary_dim=4),
    _of("GPT-NeoX, Pythia", "GPTNeoXConfig"),
    _of("GPTBigCode (StarCoder)", "GPTBigCodeConfig", **OLD),
    _of("OPT", "OPTConfig", ffn_dim=64, word_embed_proj_dim=32),
    _of("BLOOM", "BloomConfig", n_layer=2, n_head=4),
    _of("MPT", "MptConfig", d_model=32, n_heads=4, n_layers=2, max_seq_len=256),
    _of("Falcon", "FalconConfig", head_dim=...),
    _of("BioGPT", "BioGptConfig"),
    _of("XGLM", "XGLMConfig", d_model=32, ffn_dim=64, num_layers=2, attention_heads=4),
    _of("Llama", "LlamaConfig"),
    _of("Llama 4, text", "Llama4TextConfig", **MOE, intermediate_size_mlp=64),
    _of("Mistral", "MistralConfig", sliding_window=None),
    _of("Mixtral", "MixtralConfig", **MOE),
    _of("Ministral", "MinistralConfig"),
    _of("Phi", "PhiConfig"),
    _of("Phi-3, Phi-4", "Phi3Config"),
    _of("PhiMoE", "PhimoeConfig", **MOE),
    _of("Qwen2, Qwen2.5", "Qwen2Config"),
    _of("Qwen2-MoE", "Qwen2MoeConfig", **MOE, shared_expert_intermediate_size=32),
    _of("Qwen3", "Qwen3Config"),
    _of("Qwen3-MoE", "Qwen3MoeConfig", **MOE),
    _of(
        "Qwen3-Next",
        "Qwen3NextConfig",
        **MOE,
        num_hidden_layers=4,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        shared_expert_intermediate_size=32,
    ),
    _of(
        "Qwen3.5, text",
        "Qwen3_5TextConfig",
        num_hidden_layers=4,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
    _of("Gemma", "GemmaConfig"),
    _of("Gemma 2", "Gemma2Config"),
    _of("Gemma 3, text", "Gemma3TextConfig"),
    _of("Gemma 3, with vision", "Gemma3Config"),
    _of(
        "Gemma 3n, text",
        "Gemma3nTextConfig",
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=1024,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0] * 4,
    ),
    _of("Gemma 4, text", "Gemma4TextConfig", vocab_size_per_layer_input=1024, hidden_size_per_layer_input=8),
    _of("RecurrentGemma", "RecurrentGemmaConfig", num_hidden_layers=3, lru_width=32, attention_window_size=256),
    _of("OLMo", "OlmoConfig"),
    _of("OLMo 2", "Olmo2Config"),
    _of("OLMo 3", "Olmo3Config"),
    _of("OLMoE", "OlmoeConfig", **MOE),
    _of(
        "OLMo hybrid",
        "OlmoHybridConfig",
        num_hidden_layers=4,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
    _of("SmolLM3", "SmolLM3Config"),
    _of("StableLM", "StableLmConfig"),
    _of("StarCoder2", "Starcoder2Config"),
    _of("Cohere (Command R)", "CohereConfig"),
    _of("Cohere 2", "Cohere2Config"),
    _of("Granite", "GraniteConfig", logits_scaling=8.0),
    _of("GraniteMoE", "GraniteMoeConfig", **MOE, logits_scaling=8.0),
    _of(
        "Granite 4, hybrid",
        "GraniteMoeHybridConfig",
        **MOE,
        num_hidden_layers=2,
        layer_types=["mamba", "attention"],
        shared_intermediate_size=32,
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=1,
    ),
    _of("GLM-4", "GlmConfig"),
    _of("GLM-4-0414", "Glm4Config"),
    _of("GLM-4.5 (MoE)", "Glm4MoeConfig", **MOE),
    _of("EXAONE 4", "Exaone4Config"),
    _of("DeepSeek-V2", "DeepseekV2Config", **MOE, **MLA, n_group=1, topk_group=1, first_k_dense_replace=1),
    _of("DeepSeek-V3", "DeepseekV3Config", **MOE, **MLA, n_group=1, topk_group=1, first_k_dense_replace=1),
    _of("gpt-oss", "GptOssConfig", **MOE),
    _of("MiniMax-M2", "MiniMaxM2Config", **MOE),
    _of("Nemotron", "NemotronConfig"),
    _of(
        "Nemotron-H",
        "NemotronHConfig",
        hybrid_override_pattern="M*",
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=1,
    ),
    _of("Helium", "HeliumConfig"),
    _of("ERNIE 4.5", "Ernie4_5Config"),
    _of("ERNIE 4.5 MoE", "Ernie4_5_MoeConfig", **MOE, moe_num_experts=4, moe_k=2),
    _of("Seed-OSS", "SeedOssConfig"),
    _of("HunYuan", "HunYuanDenseV1Config"),
    _of("Arcee", "ArceeConfig"),
    _of("Apertus", "ApertusConfig"),
    _of("NanoChat", "NanoChatConfig"),
    _of("MiniCPM3", "MiniCPM3Config", **MLA, scale_emb=1, dim_model_base=32),
    _of("JetMoE", "JetMoeConfig", **MOE, kv_channels=8),
    _of("Persimmon", "PersimmonConfig"),
    _of("BitNet", "BitNetConfig"),
    _of("Diffllama", "DiffLlamaConfig"),
    _of("dots.llm1", "Dots1Config", **MOE, n_group=1, topk_group=1, n_shared_experts=1),
    _of("LFM2", "Lfm2Config", layer_types=["conv", "full_attention"]),
    _of(
        "Falcon-H1",
        "FalconH1Config",
        mamba_d_ssm=32,
        mamba_n_heads=4,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=1,
    ),
    _of(
        "Bamba",
        "BambaConfig",
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=1,
    ),
    _of(
        "Jamba",
        "JambaConfig",
        **MOE,
        attn_layer_period=2,
        attn_layer_offset=1,
        use_mamba_kernels=False,
        mamba_d_state=8,
    ),
    _of(
        "Zamba2",
        "Zamba2Config",
        layers_block_type=["mamba", "hybrid"],
        mamba_d_state=8,
        mamba_headdim=8,
        n_mamba_heads=8,
        mamba_ngroups=1,
        use_mamba_kernels=False,
    ),
    _of("Mamba", "MambaConfig", state_size=8),
    _of("Mamba 2", "Mamba2Config", state_size=8, num_heads=8, n_groups=1),
    _of("Falcon Mamba", "FalconMambaConfig", state_size=8),
    _of("RWKV", "RwkvConfig", attention_hidden_size=32),
)


def build(architecture: Architecture, vocabulary: int) -> PreTrainedModel:
    """A random model of a few thousand parameters."""
    kind = getattr(transformers, architecture.config)
    settings = {**COMMON, "vocab_size": vocabulary, **architecture.changes}
    if architecture.config == "Gemma3Config":
        vision = {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        }
        settings = {
            "text_config": settings,
            "vision_config": vision,
            "mm_tokens_per_image": 4,
            **{key: settings[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range")},
        }
    settings = {name: value for name, value in settings.items() if value is not ...}
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(kind(**settings))
    for parameter in model.parameters():  # some kinds start from zeros, where every mistake is invisible
        if parameter.ndim >= 2:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()
