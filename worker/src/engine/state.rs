//! What the engine lets others see: the model's facts, and a snapshot of what it is doing now.

use serde::Serialize;

/// Facts about the loaded model; fixed for the life of the process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelInfo {
    /// The name requests use.
    pub id: String,
    /// `model_type` of its `config.json`.
    pub model_type: String,
    /// Rows of the output matrix. The tokenizer may know fewer ids.
    pub vocab_size: usize,
    /// Most tokens of prompt and completion together.
    pub context_length: usize,
    /// Such as `4-bit group 64`, `mixed`, or `bf16` for an unquantised one.
    pub quantization: String,
    /// Stop tokens named by `generation_config.json`, else by `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// `bos_token_id`, where the configuration names one.
    pub bos_token_id: Option<u32>,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of KV cache that one position takes, all layers together.
    pub kv_bytes_per_token: u64,
    /// Tensors of the checkpoint that the model does not use.
    pub unused_tensors: Vec<String>,
}

/// What the engine is doing; counters run from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EngineSnapshot {
    /// False once several steps have failed in a row and the engine's own trial step failed too: such a process
    /// must be restarted.
    pub healthy: bool,
    /// False once shutdown has begun.
    pub accepting: bool,
    /// Requests that hold a slot.
    pub running: usize,
    /// Requests without a slot yet.
    pub waiting: usize,
    /// Slots there are.
    pub slots: usize,
    /// Most waiting requests.
    pub queue_limit: usize,
    /// Bytes of KV cache held now.
    pub kv_bytes: u64,
    /// Bytes the running requests may come to hold.
    pub kv_reserved_bytes: u64,
    /// Most bytes of KV cache that may be reserved.
    pub kv_limit_bytes: u64,
    /// Steps computed.
    pub steps: u64,
    /// Steps that failed.
    pub failed_steps: u64,
    /// Rows of the last step.
    pub last_step_rows: usize,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Tokens generated.
    pub decode_tokens: u64,
    /// Requests that reached their end.
    pub finished: u64,
    /// Requests whose caller left.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Mean duration of a finished request from submission, in seconds; moves with the load.
    pub mean_request_s: f32,
    /// Bytes MLX holds in arrays.
    pub mlx_active_bytes: u64,
    /// Bytes MLX keeps for reuse.
    pub mlx_cache_bytes: u64,
}
