package waveinfer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ReadableByteChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

class LifeTest {
  private static void closed(Executable call) {
    closed(call, null);
  }

  private static void closed(Executable call, String name) {
    String said = assertThrows(IllegalStateException.class, call, name).getMessage();
    assertTrue(said.endsWith(" is closed"), name + ": " + said);
  }

  /** Something of each type that a public method takes, such that only a closed object is wrong. */
  private static final Map<Class<?>, Object> ARGUMENTS =
      Map.ofEntries(
          Map.entry(boolean.class, false),
          Map.entry(int.class, 0),
          Map.entry(long.class, 0L),
          Map.entry(String.class, "x"),
          Map.entry(Path.class, Sample.FILE.resolveSibling("never written")),
          Map.entry(byte[].class, new byte[1]),
          Map.entry(int[].class, new int[1]),
          Map.entry(IntBuffer.class, IntBuffer.allocate(1)),
          Map.entry(FloatBuffer.class, FloatBuffer.allocate(0)),
          Map.entry(ByteBuffer.class, ByteBuffer.allocateDirect(8)),
          Map.entry(ReadableByteChannel.class, Channels.newChannel(InputStream.nullInputStream())),
          Map.entry(
              WritableByteChannel.class, Channels.newChannel(OutputStream.nullOutputStream())),
          Map.entry(List.class, List.of(ChatMessage.user("x"))),
          Map.entry(Duration.class, Duration.ZERO),
          Map.entry(TokenizeFlag[].class, new TokenizeFlag[0]),
          Map.entry(CancelToken.class, new CancelToken()),
          Map.entry(ChatParams.class, new ChatParams()),
          Map.entry(ModelParams.class, new ModelParams()),
          Map.entry(SessionParams.class, new SessionParams()),
          Map.entry(SamplingParams.class, new SamplingParams()),
          Map.entry(PrefillParams.class, new PrefillParams()),
          Map.entry(TaskParams.class, new TaskParams()),
          Map.entry(KvParams.class, new KvParams(1, 1, 1, 8)));

  private static Object call(Handle on, Method method) throws Throwable {
    Class<?>[] types = method.getParameterTypes();
    for (Class<?> type : types)
      assertTrue(ARGUMENTS.containsKey(type), "an argument for " + method);
    try {
      return method.invoke(on, Arrays.stream(types).map(ARGUMENTS::get).toArray());
    } catch (InvocationTargetException e) {
      throw e.getCause();
    }
  }

  /** What is lazy is asked for its first. */
  private static void use(Object made) {
    if (made instanceof Iterator<?> iterator) iterator.next();
    if (made instanceof Stream<?> stream) stream.findFirst();
  }

  @Test
  void useAfterCloseIsAnErrorOfEveryMethod() {
    WaveRuntime runtime = WaveRuntime.create(new RuntimeParams().threads(1));
    Model model = runtime.open(Sample.FILE);
    Session session = model.newSession();
    session.prefill(1, 2, 3);
    Task task = session.fork().submit(new TaskParams().maxTokens(1));
    KvStore kv = runtime.newKvStore(new KvParams(1, 1, 1, 8));
    List<Object> lazy =
        List.of(session.iterator(), session.events(), task.iterator(), task.events());
    List<Handle> all = List.of(kv, task, session, model, runtime);
    for (Handle each : all) {
      for (int times = 0; times < 2; times++) { // the second time does nothing
        assertDoesNotThrowOnClose(each);
      }
    }
    int methods = 0;
    for (Handle each : all) {
      for (Method method : each.getClass().getDeclaredMethods()) {
        int is = method.getModifiers();
        if (!Modifier.isPublic(is) || Modifier.isStatic(is) || method.isSynthetic()) continue;
        closed(() -> use(call(each, method)), method.toString());
        methods++;
      }
    }
    assertTrue(methods > 60, methods + " methods");
    for (Object made : lazy) closed(() -> use(made), made.toString());
    closed(() -> Session.decodeBatch(List.of(session), null), "decodeBatch");
  }

  private static void assertDoesNotThrowOnClose(AutoCloseable each) {
    org.junit.jupiter.api.Assertions.assertDoesNotThrow(each::close);
  }

  @Test
  void whatIsMadeKeepsWhatItIsMadeOf() {
    Random random = Sample.random();
    for (int i = 0; i < 20; i++) {
      WaveRuntime runtime = WaveRuntime.create(new RuntimeParams().threads(1));
      Model model = runtime.open(Sample.FILE);
      Session session = model.newSession();
      session.prefill(Sample.tokens(50));
      Session fork = session.fork();
      List<AutoCloseable> order = new ArrayList<>(List.of(runtime, model, session));
      Collections.shuffle(order, random);
      order.forEach(LifeTest::assertDoesNotThrowOnClose);
      assertEquals(Event.Kind.TOKEN, fork.decode().kind());
      fork.close();
    }
  }

  @Test
  @SuppressWarnings("try")
  void sharedHandlesAreClosedOnTheirOwn() {
    try (Session session = Sample.session()) {
      Session other = session.share();
      session.close();
      assertEquals(Event.Kind.TOKEN, other.decode().kind());
      other.close();
      closed(other::decode);
    }
    try (Model model = Sample.model.share();
        WaveRuntime runtime = Sample.runtime.share()) {
      assertEquals(Sample.model.info(), model.info());
      assertEquals(Sample.runtime.deviceInfo(), runtime.deviceInfo());
    }
  }

  @Test
  @Timeout(60)
  void closeDuringACallTakesEffectWhenItEnds() throws InterruptedException {
    Session session = Sample.model.newSession();
    CountDownLatch inside = new CountDownLatch(1);
    List<Throwable> thrown = Collections.synchronizedList(new ArrayList<>());
    Thread reader =
        new Thread(
            () -> {
              try {
                session.prefill(
                    Sample.tokens(2000),
                    new PrefillParams()
                        .chunkTokens(100)
                        .progress((done, total) -> inside.countDown()),
                    null);
              } catch (Throwable e) {
                thrown.add(e);
              }
            });
    reader.start();
    inside.await();
    session.close();
    closed(session::stats);
    reader.join();
    assertEquals(List.of(), thrown);
  }

  @Test
  @Timeout(60)
  void aSecondThreadInsideIsBusy() throws InterruptedException {
    try (Session session = Sample.model.newSession()) {
      CountDownLatch inside = new CountDownLatch(1);
      CountDownLatch looked = new CountDownLatch(1);
      Thread reader =
          new Thread(
              () ->
                  session.prefill(
                      Sample.tokens(300),
                      new PrefillParams()
                          .chunkTokens(100)
                          .progress(
                              (done, total) -> {
                                inside.countDown();
                                awaitQuietly(looked);
                              }),
                      null));
      reader.start();
      inside.await();
      try (Session shared = session.share()) {
        assertThrows(WaveInferException.Busy.class, session::decode);
        assertThrows(WaveInferException.Busy.class, shared::decode);
        assertThrows(WaveInferException.Busy.class, session::tokenCount);
        assertTrue(session.stats().tokens() <= 300); // any thread, any time
      } finally {
        looked.countDown();
      }
      reader.join();
      assertEquals(300, session.tokenCount());
    }
  }

  static void awaitQuietly(CountDownLatch latch) {
    try {
      latch.await();
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  private static long residentBytes() {
    try {
      return 4096 * Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]);
    } catch (IOException e) {
      throw new java.io.UncheckedIOException(e);
    }
  }

  @Test
  void tenThousandSessionsLeaveMemoryFlat() {
    SamplingParams sampling =
        new SamplingParams().stops(List.of("never")).logitsProcessor(logits -> {});
    SessionParams params = new SessionParams().sampling(sampling);
    int[] tokens = Sample.tokens(4);
    long before = 0;
    for (int i = 0; i < 12_000; i++) {
      if (i == 2_000) {
        System.gc();
        before = residentBytes();
      }
      try (Session session = Sample.model.newSession(params)) {
        session.prefill(tokens);
        session.decode();
        if (i % 10 == 0) session.fork().close();
      }
    }
    System.gc();
    long grown = residentBytes() - before;
    System.out.println("10,000 sessions: " + grown / 1000 + " kB");
    assertTrue(grown < 16 << 20, grown + " bytes more");
  }

  @Test
  @Timeout(60)
  void whatIsForgottenIsReleased() throws InterruptedException {
    int callbacks = Callbacks.count();
    int sessions = Sample.runtime.stats().sessions();
    for (int i = 0; i < 200; i++) forget(i);
    for (int i = 0; i < 500; i++) {
      System.gc();
      if (Sample.runtime.stats().sessions() <= sessions && Callbacks.count() <= callbacks) break;
      Thread.sleep(20);
    }
    assertTrue(Sample.runtime.stats().sessions() <= sessions);
    assertTrue(Callbacks.count() <= callbacks, "callbacks are left");
  }

  private static void forget(int i) {
    Session session =
        Sample.model.newSession(
            new SessionParams().sampling(new SamplingParams().logitsProcessor(logits -> {})));
    session.prefill(1, 2, 3);
    if (i % 4 == 0) session.submit(new TaskParams().maxTokens(3).whenReady(() -> {}));
    if (i % 50 == 0) { // a whole tree, in the order that the collector likes
      WaveRuntime runtime =
          WaveRuntime.create(
              new RuntimeParams().threads(1).log(LogLevel.DEBUG, (level, line) -> {}));
      ByteBuffer file = ByteBuffer.allocateDirect((int) Sample.FILE.toFile().length());
      file.put(Sample.bytes()).flip();
      Session of = runtime.open(file, new ModelParams(), null).newSession();
      of.prefill(Sample.tokens(100));
      of.fork().submit(new TaskParams().maxTokens(50));
    }
  }

  @Test
  void memoryOfAModelStaysWhileASessionLives() {
    ByteBuffer file = ByteBuffer.allocateDirect((int) Sample.FILE.toFile().length());
    Model model = Sample.runtime.open(file.put(Sample.bytes()).flip(), new ModelParams(), null);
    file = null;
    Session session = model.newSession();
    model.close();
    model = null;
    session.append("In the beginning", TokenizeFlag.ADD_BOS);
    for (int i = 0; i < 5; i++) {
      System.gc();
      ByteBuffer.allocateDirect(8 << 20).put(0, (byte) i);
      assertEquals(Event.Kind.TOKEN, session.decode().kind());
    }
    Task task = session.submit(new TaskParams().maxTokens(100_000));
    session.close();
    session = null;
    task.close(); // waits until the engine has left the weights
    System.gc();
    assertFalse(Thread.currentThread().isInterrupted());
  }
}
