use std::fmt;
use std::io::Read;
use std::mem::size_of;
use std::ops::{BitOr, ControlFlow};
use std::path::Path;
use std::sync::Arc;

use waveinfer_sys::*;

use crate::call::{c_string, call, filled, raw_progress, sized, slice, text_of, Handle, Progress};
use crate::chat::{ChatMessage, ChatOptions, RawChat};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::c_path;
use crate::session::{MemoryPlan, SessionOptions};
use crate::{transfer, Cancel, Runtime, Token};

/// Weights, tokenizer, hyper-parameters; immutable, and shared by any number of sessions and threads.
///
/// Clones are the same model. It lives until its last session is gone.
///
/// ```
/// # fn main() -> waveinfer::Result<()> {
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/model/needle-f16.gguf");
/// use waveinfer::{Model, Runtime, TokenizeFlags};
///
/// let model = Model::open(&Runtime::new()?, path)?;
/// let tokens = model.tokenize("And God said", TokenizeFlags::NONE)?;
/// assert_eq!(model.detokenize(&tokens, false)?, b"And God said");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    raw: Handle<wi_model>,
    /// What the weights lie in, if that is not the library's own; goes after it.
    bytes: Option<Arc<ModelBytes>>,
}

// SAFETY: the header: models may be used from any number of threads at once.
unsafe impl Send for Model {}
unsafe impl Sync for Model {}

impl Model {
    /// Opens a .gguf file (of a split set, the first) or a directory with config.json, tokenizer.json and
    /// *.safetensors. The file must not change while the model lives: its weights stay mapped.
    ///
    /// # Errors
    /// As [`ModelOptions::open`].
    pub fn open(runtime: &Runtime, path: impl AsRef<Path>) -> Result<Self> {
        ModelOptions::new().open(runtime, path)
    }

    /// The model's hyper-parameters.
    pub fn info(&self) -> Result<ModelInfo> {
        let mut info = sized!(wi_model_info {});
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_model_get_info(self.raw(), &mut info, error) })?;
        let token = |id| Some(id).filter(|&id| id >= 0);
        Ok(ModelInfo {
            layers: info.layers,
            hidden: info.hidden,
            query_heads: info.query_heads,
            kv_heads: info.kv_heads,
            head_dim: info.head_dim,
            ffn: info.ffn,
            vocab: info.vocab,
            bos_token: token(info.bos_token),
            eos_token: token(info.eos_token),
            max_positions: info.max_positions,
            parameters: info.parameters,
            weight_bytes: info.weight_bytes,
            kv_bytes_per_token: info.kv_bytes_per_token,
            architecture: text_of(&info.architecture),
            name: text_of(&info.name),
            weight_type: text_of(&info.weight_type),
            chat_family: text_of(&info.chat_family),
        })
    }

    /// What the model's files say about it, by key; None if they have no such key. A GGUF's keys are its own
    /// ("general.name", "llama.block_count", "tokenizer.chat_template"); a directory has config.json's, and
    /// "general.name" and "tokenizer.chat_template". Strings are as they are, everything else is JSON.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for a string that is no UTF-8, which [`metadata_bytes`](Self::metadata_bytes) has.
    pub fn metadata(&self, key: &str) -> Result<Option<String>> {
        self.metadata_bytes(key)?.map(|text| utf8(key, text)).transpose()
    }

    /// The same, whatever bytes the string has.
    pub fn metadata_bytes(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let Ok(name) = c_string("key", key) else { return Ok(None) };
        // SAFETY: all arguments are valid.
        let text = filled(256, |to: *mut u8, capacity, count, error| unsafe {
            wi_model_get_metadata(self.raw(), name.as_ptr(), to.cast(), capacity, count, error)
        });
        match text {
            Err(error) if error.kind() == ErrorKind::Argument => Ok(None),
            other => other.map(Some),
        }
    }

    /// The keys that there are, in the order of the file.
    pub fn metadata_keys(&self) -> Result<Vec<String>> {
        let mut count = 0;
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_model_metadata_count(self.raw(), &mut count, error) })?;
        let key = |index| {
            // SAFETY: all arguments are valid.
            let text = filled(64, |to: *mut u8, capacity, length, error| unsafe {
                wi_model_metadata_key(self.raw(), index, to.cast(), capacity, length, error)
            })?;
            utf8("a key", text)
        };
        (0..count).map(key).collect()
    }

    /// One token of the vocabulary, in [0, vocab).
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for one beyond it.
    pub fn token_info(&self, token: Token) -> Result<TokenInfo<'_>> {
        let mut info = sized!(wi_token_info {});
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_model_token_info(self.raw(), token, &mut info, error) })?;
        // SAFETY: the text is the model's, valid as long as it.
        Ok(TokenInfo { flags: info.flags, text: unsafe { slice(info.text.cast(), info.text_length) } })
    }

    /// Text to token ids: those that the model was trained with. Nothing but BOS is ever put before or behind the
    /// text.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for a byte that is no UTF-8, if the vocabulary has neither that byte nor an unknown
    /// token; [`ErrorKind::Unsupported`] where the file's own pattern takes too many steps.
    pub fn tokenize(&self, text: impl AsRef<[u8]>, flags: TokenizeFlags) -> Result<Vec<Token>> {
        let text = text.as_ref();
        // SAFETY: all arguments are valid.
        filled(text.len() / 2 + 8, |to, capacity, count, error| unsafe {
            let (start, length) = (text.as_ptr().cast(), text.len() as u64);
            wi_model_tokenize(self.raw(), start, length, flags.0, to, capacity, count, error)
        })
    }

    /// Token ids to text, the inverse of [`tokenize`](Self::tokenize). With `keep_special` control tokens are
    /// written as their names, else they are left out. Bytes, since part of a sequence may end within a code
    /// point.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for a token that is not in [0, vocab).
    pub fn detokenize(&self, tokens: &[Token], keep_special: bool) -> Result<Vec<u8>> {
        let flags = if keep_special { WI_DETOKENIZE_KEEP_SPECIAL } else { 0 };
        // SAFETY: all arguments are valid.
        filled(tokens.len() * 6, |to: *mut u8, capacity, count, error| unsafe {
            let (start, length) = (tokens.as_ptr(), tokens.len() as u64);
            wi_model_detokenize(self.raw(), start, length, flags, to.cast(), capacity, count, error)
        })
    }

    /// Renders a conversation, oldest message first, with the chat template of the model's file, as the text that
    /// the model was trained on. To hand a conversation to a session take [`chat_tokens`](Self::chat_tokens): in
    /// this text, what a user wrote can no longer be told from what the template wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the file has no template ([`ModelInfo::chat_family`] is empty), or it uses
    /// something that the library does not know, or reaches a limit; [`ErrorKind::Format`] for a template that is
    /// broken, or a text that is no UTF-8; [`ErrorKind::Argument`] for a conversation that the template refuses,
    /// with its own words, or cannot render, and for JSON that is none.
    pub fn chat_render(&self, messages: &[ChatMessage], options: &ChatOptions) -> Result<String> {
        let chat = RawChat::new(messages, options)?;
        let (start, count, params) = chat.arguments();
        // SAFETY: all arguments are valid.
        let text = filled(1024, |to: *mut u8, capacity, length, error| unsafe {
            wi_model_chat_render(self.raw(), start, count, params, to.cast(), capacity, length, error)
        })?;
        utf8("the conversation", text)
    }

    /// Renders a conversation to token ids, ready for [`Session::prefill`](crate::Session::prefill). Only the
    /// template's own text makes control tokens: whatever came from messages, tools or variables is text, also
    /// where it spells `<|end|>`. BOS is among them where the template prints it.
    ///
    /// # Errors
    /// As [`chat_render`](Self::chat_render).
    pub fn chat_tokens(&self, messages: &[ChatMessage], options: &ChatOptions) -> Result<Vec<Token>> {
        let chat = RawChat::new(messages, options)?;
        let (start, count, params) = chat.arguments();
        // SAFETY: all arguments are valid.
        filled(1024, |to, capacity, length, error| unsafe {
            wi_model_chat_tokens(self.raw(), start, count, params, to, capacity, length, error)
        })
    }

    /// What a session with default options and so many tokens, prompt and answer together, would take.
    ///
    /// # Errors
    /// As [`SessionOptions::plan_memory`].
    pub fn plan_memory(&self, tokens: u64) -> Result<MemoryPlan> {
        SessionOptions::new().plan_memory(self, tokens)
    }

    pub(crate) fn raw(&self) -> *mut wi_model {
        self.raw.get()
    }

    /// Whether its weights lie in the host's memory.
    pub(crate) fn borrows(&self) -> bool {
        self.bytes.is_some()
    }
}

fn utf8(name: &str, text: Vec<u8>) -> Result<String> {
    String::from_utf8(text).map_err(|error| Error::format(format!("{name}: {}", error.utf8_error())))
}

/// How to open a [`Model`]. What is not set has its default.
///
/// ```
/// # fn main() -> waveinfer::Result<()> {
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../samples/model/needle-f16.gguf");
/// use std::ops::ControlFlow;
/// use waveinfer::{ModelOptions, Precision, Runtime, Weights};
///
/// let model = ModelOptions::new()
///     .precision(Precision::F32)
///     .weights(Weights::Copied)
///     .progress(|done, total| {
///         println!("{done} of {total} bytes");
///         ControlFlow::Continue(())
///     })
///     .open(&Runtime::new()?, path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use = "options do nothing until open()"]
pub struct ModelOptions<'a> {
    precision: Precision,
    weights: Weights,
    progress: Option<Progress<'a>>,
    cancel: Option<Cancel>,
}

impl<'a> ModelOptions<'a> {
    /// All defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How products are computed, in all sessions of the model.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Where weights lie while the model lives.
    pub fn weights(mut self, weights: Weights) -> Self {
        self.weights = weights;
        self
    }

    /// Is told of bytes of the weights that are looked at or copied, and of bytes in all, which is 0 until the
    /// files' tables are read; at least every 250 ms. `ControlFlow::Break` ends the call with
    /// [`ErrorKind::Cancelled`], and so does a panic, which goes on after it.
    pub fn progress(mut self, progress: impl FnMut(u64, u64) -> ControlFlow<()> + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Ends the call when it fires.
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Opens a .gguf file (of a split set, the first) or a directory with config.json, tokenizer.json and
    /// *.safetensors. The file must not change during the call, and if weights stay mapped, while the model lives.
    /// Files are not trusted. Architectures llama, qwen2 and qwen3; weights f32, f16, bf16, q8_0, q4_0, q4_1, q5_0,
    /// q5_1, q2_K, q3_K, q4_K, q5_K, q6_K, of which a device takes f32, f16, bf16, q8_0, q4_0, q4_K, q5_K and q6_K.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; [`ErrorKind::Cancelled`]; [`ErrorKind::Format`] for a broken file;
    /// [`ErrorKind::Unsupported`] for an architecture, weight type, tokenizer, RoPE scaling or other field that is
    /// not implemented, by name; [`ErrorKind::Memory`] if a copy of the weights, with those that other models
    /// hold, is more than this process may use.
    pub fn open(self, runtime: &Runtime, path: impl AsRef<Path>) -> Result<Model> {
        let path = c_path("path", path.as_ref())?;
        // SAFETY: all arguments are valid.
        self.make(|params, cancel, out, error| unsafe {
            wi_model_open(runtime.raw(), path.as_ptr(), params, cancel, out, error)
        })
    }

    /// Opens a model from a whole GGUF file in memory: one file, no part of a split set. The weights are used
    /// where they lie, and the model keeps the memory until it and its sessions are gone.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`ErrorKind::Argument`] if the memory is not aligned to 8 bytes, unless the
    /// weights are copied.
    pub fn open_memory(self, runtime: &Runtime, bytes: impl Into<ModelBytes>) -> Result<Model> {
        let bytes = Arc::new(bytes.into());
        let file = bytes.as_slice();
        // SAFETY: all arguments are valid; the memory is kept.
        let mut model = self.make(|params, cancel, out, error| unsafe {
            let (data, length) = (file.as_ptr().cast(), file.len() as u64);
            wi_model_open_memory(runtime.raw(), data, length, params, cancel, out, error)
        })?;
        model.bytes = Some(bytes);
        Ok(model)
    }

    /// The same with [copied](Weights::Copied) weights: the memory may go or change when the call returns.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_copy(self, runtime: &Runtime, file: &[u8]) -> Result<Model> {
        // SAFETY: all arguments are valid; with copied weights the memory is not used after the call.
        self.weights(Weights::Copied).make(|params, cancel, out, error| unsafe {
            let (data, length) = (file.as_ptr().cast(), file.len() as u64);
            wi_model_open_memory(runtime.raw(), data, length, params, cancel, out, error)
        })
    }

    /// Opens a model from a whole GGUF file of `bytes` bytes that is read once, from its beginning to its end. The
    /// weights are [copied](Weights::Copied); progress counts the bytes of the file. A panic of the reader ends
    /// the call and goes on after it.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`ErrorKind::Io`] as the reader says.
    pub fn open_reader(self, runtime: &Runtime, mut file: impl Read, bytes: u64) -> Result<Model> {
        // SAFETY: all arguments are valid.
        transfer::reading(&mut file, bytes, |reader| {
            self.make(|params, cancel, out, error| unsafe {
                wi_model_open_reader(runtime.raw(), reader, params, cancel, out, error)
            })
        })
    }

    fn make(
        mut self,
        open: impl FnOnce(*const wi_model_params, *mut wi_cancel, *mut *mut wi_model, *mut wi_error) -> wi_status,
    ) -> Result<Model> {
        let (progress, progress_user) = raw_progress(&mut self.progress);
        let params = sized!(wi_model_params {
            precision: self.precision as i32,
            progress: progress,
            progress_user: progress_user,
            weights: self.weights as i32,
        });
        let cancel = Cancel::raw(self.cancel.as_ref());
        let raw = Handle::create(|out, error| open(&params, cancel, out, error))?;
        Ok(Model { raw, bytes: None })
    }
}

impl fmt::Debug for ModelOptions<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("ModelOptions")
            .field("precision", &self.precision)
            .field("weights", &self.weights)
            .field("progress", &self.progress.is_some())
            .field("cancel", &self.cancel)
            .finish()
    }
}

/// A GGUF file in memory that a model may keep: `&'static [u8]`, `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>`, or any other
/// memory by [`from_raw_parts`](Self::from_raw_parts).
pub struct ModelBytes(Bytes);

enum Bytes {
    Raw(*const u8, usize),
    Owned(Box<[u8]>),
    Shared(Arc<[u8]>),
}

// SAFETY: bytes that are only read; whoever gives raw parts promises that for them.
unsafe impl Send for ModelBytes {}
unsafe impl Sync for ModelBytes {}

impl ModelBytes {
    /// Memory of the host's own, a mapped file say.
    ///
    /// # Safety
    /// The `length` bytes from `data` on can be read, from any thread, and stay as they are until the model and
    /// everything that was made from it is gone.
    pub unsafe fn from_raw_parts(data: *const u8, length: usize) -> Self {
        Self(Bytes::Raw(data, length))
    }

    fn as_slice(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: promised to from_raw_parts.
            Bytes::Raw(data, length) => unsafe { slice(*data, *length as u64) },
            Bytes::Owned(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        }
    }
}

impl From<&'static [u8]> for ModelBytes {
    fn from(bytes: &'static [u8]) -> Self {
        Self(Bytes::Raw(bytes.as_ptr(), bytes.len()))
    }
}

impl From<Vec<u8>> for ModelBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Bytes::Owned(bytes.into()))
    }
}

impl From<Box<[u8]>> for ModelBytes {
    fn from(bytes: Box<[u8]>) -> Self {
        Self(Bytes::Owned(bytes))
    }
}

impl From<Arc<[u8]>> for ModelBytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self(Bytes::Shared(bytes))
    }
}

impl fmt::Debug for ModelBytes {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "ModelBytes({} bytes)", self.as_slice().len())
    }
}

/// How products with weights, keys and values narrower than f32 are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Precision {
    /// Prefill in bf16 with f32 sums where that is faster (AMX, AMD's AVX512_BF16, ARM's BF16), as inference servers
    /// do; logits are off by 1 or 2 % of their spread. Elsewhere as [`F32`](Self::F32), but by quantised weights as
    /// in decoding.
    #[default]
    Fast = WI_PRECISION_FAST,
    /// Everything in f32; where [`Fast`](Self::Fast) is in bf16 half as fast, a quarter with AMX.
    F32 = WI_PRECISION_F32,
    /// Where there is AMX, each number as the sum of two bf16 numbers; half as fast as [`Fast`](Self::Fast).
    /// Elsewhere [`F32`](Self::F32).
    High = WI_PRECISION_HIGH,
    /// By quantised weights, decoding as well as prefill multiplies in integers; logits are off by 1 % of their
    /// spread. Elsewhere as [`Fast`](Self::Fast).
    Int8 = WI_PRECISION_INT8,
}

/// Where weights lie while a model lives. Neither counts against the runtime's budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Weights {
    /// In the file, which must not change so long: one that is cut short or whose disk goes away ends the process
    /// with SIGBUS. Opening reads next to nothing, and processes that map the same file share its memory.
    #[default]
    Mapped = WI_WEIGHTS_MAPPED,
    /// In memory of this process alone. Opening reads the whole file and closes it.
    Copied = WI_WEIGHTS_COPIED,
}

/// How text becomes tokens; combined by `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TokenizeFlags(pub(crate) u32);

impl TokenizeFlags {
    /// The text alone, and all of it is text.
    pub const NONE: Self = Self(0);
    /// Puts the beginning-of-sequence token first, if the model has one.
    pub const ADD_BOS: Self = Self(WI_TOKENIZE_ADD_BOS);
    /// Text like `<|end|>` becomes that control token; else it is text.
    pub const PARSE_SPECIAL: Self = Self(WI_TOKENIZE_PARSE_SPECIAL);
}

impl BitOr for TokenizeFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// One token of a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenInfo<'a> {
    /// As [`Model::detokenize`] writes it within a text with `keep_special`; any bytes.
    pub text: &'a [u8],
    flags: i32,
}

impl TokenInfo<'_> {
    /// `<|end|>` and the like.
    pub fn is_control(&self) -> bool {
        self.flags & WI_TOKEN_CONTROL != 0
    }

    /// Ends an answer: decode gives it as [`EventKind::End`](crate::EventKind::End).
    pub fn is_end(&self) -> bool {
        self.flags & WI_TOKEN_END != 0
    }

    /// Stands for one byte, which is part of a code point or of no UTF-8.
    pub fn is_byte(&self) -> bool {
        self.flags & WI_TOKEN_BYTE != 0
    }

    /// Fills up the vocabulary: no text becomes it.
    pub fn is_unused(&self) -> bool {
        self.flags & WI_TOKEN_UNUSED != 0
    }

    /// A word that was added to the vocabulary: found in text as a whole.
    pub fn is_user(&self) -> bool {
        self.flags & WI_TOKEN_USER != 0
    }

    /// All of these, as the library's `WI_TOKEN_*`, or-ed.
    pub fn flags(&self) -> i32 {
        self.flags
    }
}

/// A model's hyper-parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// Layers.
    pub layers: i32,
    /// Width of the residual stream.
    pub hidden: i32,
    /// Query heads, a multiple of `kv_heads`.
    pub query_heads: i32,
    /// KV heads.
    pub kv_heads: i32,
    /// Numbers per head.
    pub head_dim: i32,
    /// Width of the feed-forward block.
    pub ffn: i32,
    /// Token ids are in [0, vocab).
    pub vocab: i32,
    /// Begins a sequence.
    pub bos_token: Option<Token>,
    /// Ends one; [`Event::kind`](crate::Event::kind) knows every token that ends an answer.
    pub eos_token: Option<Token>,
    /// The model was made for at most so many tokens; enforced where it is not implemented beyond them.
    pub max_positions: u64,
    /// Weights, counted.
    pub parameters: u64,
    /// As stored in the file.
    pub weight_bytes: u64,
    /// All layers, with f16 KV, without index.
    pub kv_bytes_per_token: u64,
    /// "llama", "qwen2" or "qwen3".
    pub architecture: String,
    /// As the file calls it; may be empty.
    pub name: String,
    /// Of most weight bytes: "f16", "q8_0", "q4_k" and so on.
    pub weight_type: String,
    /// "template" if the file has a chat template, empty if it has none.
    pub chat_family: String,
}

const _: () = assert!(size_of::<Token>() == size_of::<i32>());
