package waveinfer;

import java.io.IOException;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.channels.ReadableByteChannel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Threads, memory budget and log; one per program is usual. Its threads, budget and log outlast
 * {@link #close} while a model, session or KV store of it lives. All threads.
 */
public final class WaveRuntime extends Handle {
  private WaveRuntime(long address) {
    super(address, Native::wi_runtime_release, null, new AtomicBoolean());
  }

  /**
   * Makes a runtime with all defaults.
   *
   * @return a new one
   * @see #create(RuntimeParams)
   */
  public static WaveRuntime create() {
    return create(new RuntimeParams());
  }

  /**
   * Makes a runtime: reads the machine's topology, starts threads, allocates nothing large.
   *
   * @param params how
   * @return a new one
   * @throws WaveInferException.Unsupported for what is no name of a device, and for a spill folder
   *     beside one
   * @throws WaveInferException.Device with the reason, for a device that is not there or cannot be
   *     used
   * @throws WaveInferException.Io for a spill folder in which no file can be made
   * @throws RuntimeException what its log throws meanwhile on this thread; there is no runtime then
   */
  public static WaveRuntime create(RuntimeParams params) {
    long log = params.log() == null ? 0 : Callbacks.add(new Callbacks.Log(params.log()));
    boolean made = false;
    try (Call call = Call.enter()) {
      int status = Native.wi_runtime_create(params.write(call, log), call.out(), call.error());
      long runtime = call.outLong();
      call.check(status, () -> Native.wi_runtime_release(runtime));
      made = true;
      return new WaveRuntime(runtime);
    } finally {
      if (!made) Callbacks.remove(log);
    }
  }

  /**
   * The library's version, "major.minor.patch".
   *
   * @return its version
   */
  public static String libraryVersion() {
    return Texts.of(Native.text(Native.wi_version()));
  }

  /**
   * The version of the library's binary interface, which is that of this jar's classes.
   *
   * @return its number
   */
  public static int abiVersion() {
    return Native.wi_abi_version();
  }

  /**
   * Another handle of this runtime, which is closed on its own.
   *
   * @return a new one
   */
  public WaveRuntime share() {
    try (Call call = Call.enter()) {
      return new WaveRuntime(Native.wi_runtime_retain(call.use(this)));
    }
  }

  /**
   * What a runtime could be made on: the host's own processor first, then what is beside it; where
   * there is nothing, one that says why.
   *
   * @return all of them
   */
  public static List<DeviceInfo> devices() {
    try (Call call = Call.enter()) {
      call.check(Native.wi_device_count(call.out(), call.error()));
      int count = call.outInt();
      List<DeviceInfo> devices = new ArrayList<>(count);
      wi_device_info info = call.own(new wi_device_info());
      for (int i = 0; i < count; i++) {
        call.check(Native.wi_device_get_info(i, info.address(), call.error()));
        devices.add(DeviceInfo.of(info));
      }
      return List.copyOf(devices);
    }
  }

  /**
   * What the runtime runs on.
   *
   * @return processor, memory and threads
   */
  public DeviceInfo deviceInfo() {
    try (Call call = Call.enter()) {
      wi_device_info info = call.own(new wi_device_info());
      call.check(Native.wi_runtime_device_info(call.use(this), info.address(), call.error()));
      return DeviceInfo.of(info);
    }
  }

  /**
   * The policies that {@link PolicyParams#name} may name.
   *
   * @return all of them
   */
  public List<PolicyInfo> policies() {
    int count = deviceInfo().policies();
    List<PolicyInfo> policies = new ArrayList<>(count);
    try (Call call = Call.enter()) {
      wi_policy_info info = call.own(new wi_policy_info());
      long runtime = call.use(this);
      for (int i = 0; i < count; i++) {
        call.check(Native.wi_runtime_policy(runtime, i, info.address(), call.error()));
        policies.add(PolicyInfo.of(info));
      }
    }
    return List.copyOf(policies);
  }

  /**
   * What the runtime holds at this moment.
   *
   * @return numbers that are each right, but not taken at one instant
   */
  public RuntimeStats stats() {
    try (Call call = Call.enter()) {
      wi_runtime_stats stats = call.own(new wi_runtime_stats());
      call.check(Native.wi_runtime_get_stats(call.use(this), stats.address(), call.error()));
      return RuntimeStats.of(stats);
    }
  }

  /**
   * Opens a model with all defaults.
   *
   * @param path as of {@link #open(Path, ModelParams, CancelToken)}
   * @return a new model
   */
  public Model open(Path path) {
    return open(path, new ModelParams(), null);
  }

  /**
   * Opens a model: a .gguf file (of a split set, the first) or a directory with config.json,
   * tokenizer.json and *.safetensors. If the weights stay mapped, the file must not change while
   * the model or a session of it lives. Architectures llama, qwen2 and qwen3; weights f32, f16,
   * bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_K, q3_K, q4_K, q5_K, q6_K, of which a device takes f32,
   * f16, bf16, q8_0, q4_0, q4_K, q5_K and q6_K.
   *
   * @param path the file or directory
   * @param params how
   * @param cancel ends the call; may be null
   * @return a new model
   * @throws WaveInferException.Io if a file cannot be read
   * @throws WaveInferException.Format for a broken file
   * @throws WaveInferException.Unsupported for an architecture, weight type or the like that is not
   *     implemented, by name
   * @throws WaveInferException.Memory if a copy of the weights is more than this process may use
   * @throws WaveInferException.Cancelled by an interrupt or the token
   */
  public Model open(Path path, ModelParams params, CancelToken cancel) {
    try (Call call = Call.cancellable(cancel)) {
      call.check(
          Native.wi_model_open(
              call.use(this),
              call.path(path),
              params.write(call).address(),
              call.cancel(),
              call.out(),
              call.error()));
      return new Model(call.outLong(), null);
    }
  }

  /**
   * Opens a model from a whole GGUF file in memory. The weights of a direct buffer are used where
   * they lie: its contents must stay as they are while the model or a session of it lives, unless
   * the weights are copied. The buffer itself is kept alive. Another buffer is copied first.
   *
   * @param file from its position to its limit; where a direct one begins is a multiple of 8,
   *     unless the weights are copied
   * @param params how
   * @param cancel ends the call; may be null
   * @return a new model
   * @throws WaveInferException as {@link #open(Path, ModelParams, CancelToken)}
   */
  public Model open(ByteBuffer file, ModelParams params, CancelToken cancel) {
    ByteBuffer given = file.duplicate(); // with a place and an end that are nobody else's
    ByteBuffer direct =
        given.isDirect() ? given : ByteBuffer.allocateDirect(given.remaining()).put(given).flip();
    try (Call call = Call.cancellable(cancel)) {
      wi_model_params how = params.write(call);
      call.check(
          Native.wi_model_open_memory(
              call.use(this),
              Native.address(direct) + direct.position(),
              direct.remaining(),
              how.address(),
              call.cancel(),
              call.out(),
              call.error()));
      boolean copied = how.getWeights() == wi_weights.WI_WEIGHTS_COPIED;
      return new Model(call.outLong(), copied ? null : direct);
    } finally {
      Reference.reachabilityFence(direct);
    }
  }

  /**
   * Opens a model from a whole GGUF file that is read from a channel, once, from its beginning to
   * its end. The weights are copied, whatever params says of them; progress counts the bytes of the
   * file.
   *
   * @param file a channel at the file's beginning
   * @param bytes that the file has
   * @param params how
   * @param cancel ends the call; may be null
   * @return a new model
   * @throws IOException what the channel throws
   * @throws WaveInferException as {@link #open(Path, ModelParams, CancelToken)}
   */
  public Model open(ReadableByteChannel file, long bytes, ModelParams params, CancelToken cancel)
      throws IOException {
    try (Call call = Call.cancellable(cancel)) {
      call.checkIo(
          Native.wi_model_open_reader(
              call.use(this),
              Source.reader(call, file, bytes),
              params.write(call).address(),
              call.cancel(),
              call.out(),
              call.error()));
      return new Model(call.outLong(), null);
    }
  }

  /**
   * Makes an empty KV store.
   *
   * @param params its shape
   * @return a new one
   * @throws WaveInferException.Unsupported for an unknown policy, and on a device
   */
  public KvStore newKvStore(KvParams params) {
    try (Call call = Call.enter()) {
      call.check(Native.wi_kv_create(call.use(this), params.write(call), call.out(), call.error()));
      return new KvStore(call.outLong(), params, new AtomicBoolean());
    }
  }

  /**
   * Reads a KV store back from a file, as {@link Model#load(Path, SessionParams, CancelToken)} does
   * a session.
   *
   * @param path a regular file
   * @param params its shape, which must be as saved; what else is not set is as saved
   * @param cancel ends the call; may be null
   * @return a new one
   * @throws WaveInferException.Argument if a number of the shape is less than 1
   * @throws WaveInferException.Io if the file cannot be read
   * @throws WaveInferException.Format for a damaged file, or one of a session
   * @throws WaveInferException.Unsupported for a policy or a section that the library does not know
   * @throws WaveInferException.Mismatch for another shape
   * @throws WaveInferException.Budget if it is too large
   * @throws WaveInferException.Cancelled by an interrupt or the token
   */
  public KvStore loadKvStore(Path path, KvParams params, CancelToken cancel) {
    params.needShape();
    try (Call call = Call.cancellable(cancel)) {
      call.check(
          Native.wi_kv_load(
              call.use(this),
              call.path(path),
              params.write(call),
              call.cancel(),
              call.out(),
              call.error()));
      return new KvStore(call.outLong(), params, new AtomicBoolean());
    }
  }

  /**
   * Reads a KV store back from a channel.
   *
   * @param from a channel where what was saved begins
   * @param bytes that it has
   * @param params its shape, which must be as saved; what else is not set is as saved
   * @param cancel ends the call; may be null
   * @return a new one
   * @throws IOException what the channel throws
   * @throws WaveInferException as {@link #loadKvStore(Path, KvParams, CancelToken)}
   */
  public KvStore loadKvStore(
      ReadableByteChannel from, long bytes, KvParams params, CancelToken cancel)
      throws IOException {
    params.needShape();
    try (Call call = Call.cancellable(cancel)) {
      call.checkIo(
          Native.wi_kv_load_from(
              call.use(this),
              Source.reader(call, from, bytes),
              params.write(call),
              call.cancel(),
              call.out(),
              call.error()));
      return new KvStore(call.outLong(), params, new AtomicBoolean());
    }
  }
}
