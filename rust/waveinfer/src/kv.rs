use std::io::{Read, Write};
use std::path::Path;

use waveinfer_sys::*;

use crate::call::{call, int, sized, Handle};
use crate::error::{Error, Result};
use crate::runtime::c_path;
use crate::session::KvType;
use crate::stats::{SessionStats, StatsReader};
use crate::{transfer, Cancel, Policy, Runtime};

/// The heads and layers of a KV store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// 1 to 65536.
    pub layers: u32,
    /// 1 to 65536, a multiple of `kv_heads` (GQA).
    pub query_heads: u32,
    /// 1 to 65536.
    pub kv_heads: u32,
    /// 8 to 65536, a multiple of 8; a token takes at most 1 GiB in all layers.
    pub head_dim: u32,
}

/// A KV cache alone, for hosts that have model code of their own: give it k and v per layer, get attention back,
/// with the same segments and policies as a session.
///
/// As a [`Session`](crate::Session) it is used by one thread at a time, not always the same one.
///
/// ```
/// # fn main() -> waveinfer::Result<()> {
/// use waveinfer::{Kv, KvShape, Runtime};
///
/// let shape = KvShape { layers: 1, query_heads: 2, kv_heads: 1, head_dim: 8 };
/// let mut kv = Kv::new(&Runtime::new()?, shape)?;
/// let value = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
/// kv.append(0, &[1.0; 8], &value)?; // one token
/// let (mut out, mut lse) = ([0.0; 16], [0.0; 2]);
/// kv.attend(0, &[1.0; 16], &mut out, Some(&mut lse))?; // one row of queries
/// assert_eq!(out, [value, value].concat()[..]);
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0277
/// fn is_sync<T: Sync>() {}
/// is_sync::<waveinfer::Kv>();
/// ```
#[derive(Debug)]
pub struct Kv {
    raw: Handle<wi_kv>,
    shape: KvShape,
    cancel: Option<Cancel>,
}

// SAFETY: the header: a KV store is used by one thread at a time, not always the same one.
unsafe impl Send for Kv {}

impl Kv {
    /// An empty store with default options.
    ///
    /// # Errors
    /// As [`KvOptions::create`].
    pub fn new(runtime: &Runtime, shape: KvShape) -> Result<Self> {
        KvOptions::new(shape).create(runtime)
    }

    /// Its heads and layers.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Gives a token to all calls on this store from now on, or none.
    pub fn set_cancel(&mut self, cancel: Option<&Cancel>) {
        self.cancel = cancel.cloned();
    }

    /// Appends tokens to one layer, in [0, layers). Layers may be filled one after the other, as a model computes
    /// them; a token belongs to the store once every layer has it. `keys` and `values` are (tokens, kv_heads,
    /// head_dim) f32, finite; keys rotated. They are rounded to the KV type.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) if the two are not equally long and whole tokens, or a
    /// number is not finite; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if one is beyond the KV
    /// type, naming the types that hold it; [`ErrorKind::Budget`](crate::ErrorKind::Budget);
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the disk of the slow tier fails.
    pub fn append(&mut self, layer: u32, keys: &[f32], values: &[f32]) -> Result<()> {
        let width = self.shape.kv_heads as usize * self.shape.head_dim as usize;
        let tokens = rows("keys", keys.len(), width)?;
        expect_length("values", values.len(), keys.len())?;
        // SAFETY: the arrays have so many tokens.
        call(|error| unsafe {
            let (keys, values) = (keys.as_ptr(), values.as_ptr());
            wi_kv_append(self.raw.get(), int(layer), tokens as u64, keys, values, error)
        })
    }

    /// Seals what can be sealed beyond the local window, cut as a prompt of so many tokens is cut. Nothing is sealed
    /// without this call, and until then everything is attended exactly.
    ///
    /// # Errors
    /// [`ErrorKind::State`](crate::ErrorKind::State) if layers have different numbers of tokens;
    /// [`ErrorKind::Budget`](crate::ErrorKind::Budget);
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) and [`ErrorKind::Format`](crate::ErrorKind::Format) of the slow
    /// tier, as [`Session::prefill`](crate::Session::prefill).
    pub fn seal(&mut self) -> Result<()> {
        // SAFETY: the handle is valid.
        call(|error| unsafe { wi_kv_seal(self.raw.get(), error) })
    }

    /// Attention of queries over everything appended to a layer so far: softmax(q * k / sqrt(head_dim)) * v. Every
    /// row sees the same tokens; causal order within a chunk is the host's (append, attend, append, attend).
    ///
    /// * `queries`: (rows, query_heads, head_dim) f32, rotated, not scaled;
    /// * `out`: as `queries`, normalised. Unspecified after a failure;
    /// * `lse`: (rows, query_heads) natural log of the sum of exponentials, for merging with attention over other
    ///   tokens. Unspecified after a failure.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) if the lengths do not fit each other;
    /// [`ErrorKind::State`](crate::ErrorKind::State) if the layer is empty;
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled);
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) and [`ErrorKind::Format`](crate::ErrorKind::Format) of the slow
    /// tier, as [`Session::prefill`](crate::Session::prefill).
    pub fn attend(
        &mut self,
        layer: u32,
        queries: &[f32],
        out: &mut [f32],
        lse: Option<&mut [f32]>,
    ) -> Result<()> {
        let heads = self.shape.query_heads as usize;
        let rows = rows("queries", queries.len(), heads * self.shape.head_dim as usize)?;
        expect_length("out", out.len(), queries.len())?;
        if let Some(lse) = &lse {
            expect_length("lse", lse.len(), rows * heads)?;
        }
        let lse = lse.map_or(std::ptr::null_mut(), |lse| lse.as_mut_ptr());
        let cancel = Cancel::raw(self.cancel.as_ref());
        // SAFETY: the arrays have so many rows.
        call(|error| unsafe {
            let (queries, out) = (queries.as_ptr(), out.as_mut_ptr());
            wi_kv_attend(self.raw.get(), int(layer), rows as u64, queries, cancel, out, lse, error)
        })
    }

    /// A second store that goes on from here on its own; shares everything sealed.
    pub fn fork(&self) -> Result<Kv> {
        // SAFETY: handle and output are valid.
        let raw = Handle::create(|out, error| unsafe { wi_kv_fork(self.raw.get(), out, error) })?;
        Ok(Self { raw, shape: self.shape, cancel: None })
    }

    /// Cuts the store back to its first `tokens` tokens, in every layer; what only some layers have goes too.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for more tokens than it has;
    /// [`ErrorKind::Budget`](crate::ErrorKind::Budget);
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) and [`ErrorKind::Format`](crate::ErrorKind::Format) of the slow
    /// tier, as [`Session::prefill`](crate::Session::prefill).
    pub fn truncate(&mut self, tokens: u64) -> Result<()> {
        // SAFETY: the handle is valid.
        call(|error| unsafe { wi_kv_truncate(self.raw.get(), tokens, error) })
    }

    /// Writes the store to a file, as [`Session::save`](crate::Session::save).
    ///
    /// # Errors
    /// As there, and [`ErrorKind::State`](crate::ErrorKind::State) if layers have different numbers of tokens.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path("path", path.as_ref())?;
        let cancel = Cancel::raw(self.cancel.as_ref());
        // SAFETY: all arguments are valid.
        call(|error| unsafe { wi_kv_save(self.raw.get(), path.as_ptr(), cancel, error) })
    }

    /// The same bytes to a writer, as [`Session::save_to`](crate::Session::save_to).
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn save_to(&mut self, mut to: impl Write) -> Result<()> {
        let cancel = Cancel::raw(self.cancel.as_ref());
        transfer::writing(&mut to, |writer| {
            // SAFETY: all arguments are valid.
            call(|error| unsafe { wi_kv_save_to(self.raw.get(), writer, cancel, error) })
        })
    }

    /// Bytes that a save of the store as it is now takes.
    ///
    /// # Errors
    /// [`ErrorKind::State`](crate::ErrorKind::State) if layers have different numbers of tokens.
    pub fn saved_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: handle and output are valid.
        call(|error| unsafe { wi_kv_saved_bytes(self.raw.get(), &mut bytes, error) })?;
        Ok(bytes)
    }

    /// What the store has done; fields about prefill, weights and prefixes stay 0.
    pub fn stats(&self) -> Result<SessionStats> {
        // SAFETY: handle and output are valid.
        SessionStats::get(|out, error| unsafe { wi_kv_get_stats(self.raw.get(), out, error) })
    }

    /// The same for any thread at any time.
    pub fn stats_reader(&self) -> StatsReader {
        StatsReader::of_kv(&self.raw)
    }
}

fn rows(name: &str, length: usize, width: usize) -> Result<usize> {
    if length % width == 0 {
        return Ok(length / width);
    }
    Err(Error::argument(format!("{name} has {length} floats, not a multiple of {width}")))
}

fn expect_length(name: &str, length: usize, wanted: usize) -> Result<()> {
    if length == wanted {
        return Ok(());
    }
    Err(Error::argument(format!("{name} has {length} floats, not {wanted}")))
}

/// How to make a [`Kv`], or load one. What is not set has its default; when a store is loaded, it is as it was saved.
#[derive(Clone, Debug)]
#[must_use = "options do nothing until create() or load()"]
pub struct KvOptions {
    shape: KvShape,
    kv_type: KvType,
    policy: Option<Policy>,
    kv_budget_bytes: u64,
    cancel: Option<Cancel>,
}

impl KvOptions {
    /// There is no default shape.
    pub fn new(shape: KvShape) -> Self {
        Self { shape, kv_type: KvType::F16, policy: None, kv_budget_bytes: 0, cancel: None }
    }

    /// Type of stored keys and values. Default: f16.
    pub fn kv_type(mut self, kv_type: KvType) -> Self {
        self.kv_type = kv_type;
        self
    }

    /// How tokens are indexed and what a query reads of them.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Most bytes of this store's KV and index, as of a session's.
    pub fn kv_budget_bytes(mut self, bytes: u64) -> Self {
        self.kv_budget_bytes = bytes;
        self
    }

    /// Ends [`load`](Self::load) and [`load_from`](Self::load_from) when it fires.
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Makes an empty store.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for an unknown policy, and on a device;
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for a value out of range.
    pub fn create(&self, runtime: &Runtime) -> Result<Kv> {
        // SAFETY: all arguments are valid.
        self.make(|params, _, out, error| unsafe { wi_kv_create(runtime.raw(), params, out, error) })
    }

    /// Reads a store back from a file. The shape must be the saved one's; the rest is as of
    /// [`SessionOptions::load`](crate::SessionOptions::load).
    ///
    /// # Errors
    /// As there.
    pub fn load(&self, runtime: &Runtime, path: impl AsRef<Path>) -> Result<Kv> {
        let path = c_path("path", path.as_ref())?;
        // SAFETY: all arguments are valid.
        self.make(|params, cancel, out, error| unsafe {
            wi_kv_load(runtime.raw(), path.as_ptr(), params, cancel, out, error)
        })
    }

    /// The same from the `bytes` bytes that a reader has, which are those of a save.
    ///
    /// # Errors
    /// As [`load`](Self::load); [`ErrorKind::Io`](crate::ErrorKind::Io) as the reader says.
    pub fn load_from(&self, runtime: &Runtime, mut from: impl Read, bytes: u64) -> Result<Kv> {
        transfer::reading(&mut from, bytes, |reader| {
            // SAFETY: all arguments are valid.
            self.make(|params, cancel, out, error| unsafe {
                wi_kv_load_from(runtime.raw(), reader, params, cancel, out, error)
            })
        })
    }

    fn make(
        &self,
        make: impl FnOnce(*const wi_kv_params, *mut wi_cancel, *mut *mut wi_kv, *mut wi_error) -> wi_status,
    ) -> Result<Kv> {
        let shape = self.shape;
        // What is zero would be taken from a file, and the lengths of arrays could not be verified.
        if [shape.layers, shape.query_heads, shape.kv_heads, shape.head_dim].contains(&0) {
            return Err(Error::argument(format!("{shape:?} has a zero")));
        }
        let raw = Policy::with_raw(self.policy.as_ref(), |policy| {
            let params = sized!(wi_kv_params {
                layers: int(shape.layers),
                query_heads: int(shape.query_heads),
                kv_heads: int(shape.kv_heads),
                head_dim: int(shape.head_dim),
                kv_type: self.kv_type as i32,
                policy: policy,
                kv_budget_bytes: self.kv_budget_bytes,
            });
            let cancel = Cancel::raw(self.cancel.as_ref());
            Handle::create(|out, error| make(&params, cancel, out, error))
        })?;
        Ok(Kv { raw, shape, cancel: None })
    }
}
