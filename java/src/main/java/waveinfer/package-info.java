/**
 * Long-context language models inside a Java program: libwaveinfer as a Java library.
 *
 * <pre>{@code
 * try (WaveRuntime runtime = WaveRuntime.create();
 *     Model model = runtime.open(Path.of("model.gguf"));
 *     Session session = model.newSession()) {
 *   session.append("Once upon a time", TokenizeFlag.ADD_BOS);
 *   session.events().limit(64).forEach(event -> System.out.print(event.text()));
 * }
 * }</pre>
 *
 * <p><b>What it is.</b> A {@link waveinfer.WaveRuntime} has threads and a memory budget, a {@link
 * waveinfer.Model} weights and a tokenizer, a {@link waveinfer.Session} one token sequence with its
 * KV cache; a {@link waveinfer.Task} is a prompt and its answer that the runtime works on by
 * itself, a {@link waveinfer.KvStore} the KV cache alone. Terms, defaults and limits are those of
 * the C header, {@code waveinfer.h}; a parameter that is not set, or zero, means the default.
 *
 * <p><b>Lives.</b> Every object here that is {@link java.lang.AutoCloseable} holds native memory
 * until it is closed; one that was forgotten is released some time after nothing refers to it any
 * more. Objects may be closed in any order: a session keeps what it needs of its model, a model of
 * its runtime. A call on a closed object is an {@link java.lang.IllegalStateException}; closing
 * twice does nothing; closing an object that another thread is inside of takes effect when that
 * call ends.
 *
 * <p><b>Threads.</b> Runtimes, models, tasks and cancel tokens may be used by any number of threads
 * at once. A session and a KV store are used by one thread at a time, not always the same one: a
 * call that finds another one inside is a {@link waveinfer.WaveInferException.Busy} and changes
 * nothing. Statistics may be read from any thread at any time.
 *
 * <p><b>Buffers.</b> Direct ones in native byte order are used where they lie, from their position
 * to their limit as both are when the call begins; others, and arrays, are copied. None is used
 * after the call has returned, but for the weights of {@link
 * waveinfer.WaveRuntime#open(java.nio.ByteBuffer, ModelParams, CancelToken)}. Until then nobody
 * else may write to what a call reads, nor look at what it writes; ids are copied before they are
 * checked and used.
 *
 * <p><b>Errors.</b> Whatever the library refuses is a {@link waveinfer.WaveInferException}, of a
 * class for each {@link waveinfer.Status}; the object is then as it was before the call. Any call
 * may throw {@link waveinfer.WaveInferException.Argument}, {@link
 * waveinfer.WaveInferException.Memory} or {@link waveinfer.WaveInferException.Internal}, one of a
 * runtime on a device {@link waveinfer.WaveInferException.Device} or {@link
 * waveinfer.WaveInferException.DeviceLost}, too; its own text lists the rest. A {@code null} where
 * none may be is a {@link java.lang.NullPointerException}.
 *
 * <p><b>Cancellation.</b> {@link java.lang.Thread#interrupt} on a thread inside a call that takes
 * time ends that call with {@link waveinfer.WaveInferException.Cancelled}, within 100 ms in a
 * prefill, within one layer in a decode step; the thread's interrupt status stays set. A {@link
 * waveinfer.CancelToken} ends calls on any number of threads.
 *
 * <p><b>Callbacks</b> run during the call that they are given to, on its thread. What one throws
 * ends the call, and is thrown by the call instead of a {@link
 * waveinfer.WaveInferException.Cancelled}; what a log may throw, {@link
 * waveinfer.RuntimeParams#log(LogLevel, java.util.function.BiConsumer)} says. It must not use the
 * object that the call is on, except for its statistics.
 *
 * <p><b>Text</b> is exact: any Unicode string, NUL characters included. An unpaired surrogate,
 * which UTF-8 cannot say, becomes a question mark; where bytes that are no UTF-8 matter, methods
 * take and give {@code byte[]}.
 *
 * <p><b>Paths</b> are of the default file system; one of another, as in a zip file, is a {@link
 * waveinfer.WaveInferException.Argument}.
 *
 * <p><b>Native code</b> is in the jar, for Linux, and is unpacked to a temporary folder while it is
 * loaded; the property {@code waveinfer.library.path} names a folder to load it from instead. Java
 * 24 and later warn of the first call, and a later one will refuse it, unless the program is
 * started with {@code --enable-native-access=ALL-UNNAMED}, or, where the jar is on the module path,
 * {@code --enable-native-access=waveinfer}. A program that is a jar of its own may say {@code
 * Enable-Native-Access: ALL-UNNAMED} in its manifest instead; in that of a dependency, as this jar
 * is, it says nothing. Java 17 knows the flag, too.
 *
 * <p><b>Numbers</b> that are unsigned in C (bytes, tokens, seeds) are a {@code long} of the same
 * bits. Names that end in {@code Ns} are nanoseconds, in {@code Bytes} bytes.
 */
package waveinfer;
