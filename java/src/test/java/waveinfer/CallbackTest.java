package waveinfer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class CallbackTest {
  private static final class Oops extends RuntimeException {
    private static final long serialVersionUID = 1;
  }

  @Test
  void whatProgressThrowsEndsTheCallAndIsThrown() {
    try (Session session = Sample.session()) {
      for (Throwable oops :
          List.of(new Oops(), new StackOverflowError(), new OutOfMemoryError("not really"))) {
        PrefillParams params =
            new PrefillParams()
                .chunkTokens(64)
                .progress((done, total) -> Callbacks.<RuntimeException>sneaky(oops));
        assertSame(oops, assertThrows(Throwable.class, () -> prefill(session, params)));
        assertEquals(5, session.tokenCount());
      }
      assertThrows(
          Oops.class,
          () ->
              Sample.runtime.open(
                  Sample.FILE,
                  new ModelParams()
                      .progress(
                          (done, total) -> {
                            throw new Oops();
                          }),
                  null));
      assertEquals(Event.Kind.TOKEN, session.decode().kind());
    }
  }

  private static void prefill(Session session, PrefillParams params) {
    session.prefill(Sample.tokens(500), params, null);
  }

  @Test
  void aRealStackOverflowEndsTheCall() {
    try (Session session = Sample.session()) {
      PrefillParams params = new PrefillParams().progress((done, total) -> forever(0));
      assertThrows(StackOverflowError.class, () -> prefill(session, params));
      assertEquals(5, session.tokenCount());
    }
  }

  private static int forever(int depth) {
    return depth + forever(depth + 1) + 1;
  }

  @Test
  void progressEndsAtItsTotal() {
    try (Session session = Sample.session()) {
      List<Long> dones = new ArrayList<>();
      prefill(
          session, new PrefillParams().chunkTokens(64).progress((done, total) -> dones.add(done)));
      assertEquals(500, dones.get(dones.size() - 1));
      List<Long> sorted = new ArrayList<>(dones);
      Collections.sort(sorted);
      assertEquals(sorted, dones);
    }
  }

  @Test
  void aCallbackMayUseOtherObjectsAndStatistics() {
    try (Session session = Sample.session()) {
      AtomicInteger called = new AtomicInteger();
      PrefillParams params =
          new PrefillParams()
              .progress(
                  (done, total) -> {
                    called.incrementAndGet();
                    assertTrue(Sample.model.tokenize("and the").length > 0);
                    try (Session other = Sample.session()) {
                      other.decode();
                    }
                    session.stats();
                    assertThrows(WaveInferException.Busy.class, session::decode);
                  });
      prefill(session, params);
      assertTrue(called.get() > 0);
    }
  }

  @Test
  @SuppressWarnings("try")
  void aProcessorChangesWhatIsSampled() {
    int the = Sample.model.tokenize(" the")[0];
    SamplingParams only =
        new SamplingParams()
            .logitsProcessor(
                logits -> {
                  float[] all = new float[logits.size()];
                  logits.copyTo(all);
                  assertEquals(all[7], logits.get(7));
                  java.util.Arrays.fill(all, Float.NEGATIVE_INFINITY);
                  all[the] = 0;
                  logits.copyFrom(all);
                  logits.forbid(7);
                });
    try (Session session = Sample.model.newSession(new SessionParams().sampling(only))) {
      session.append("In the beginning", TokenizeFlag.ADD_BOS);
      assertEquals(List.of(the, the, the), Sample.answer(session, 3));
      try (Session fork = session.fork()) {
        session.close();
        System.gc(); // the fork has the processor
        assertEquals(List.of(the, the, the), Sample.answer(fork, 3));
        fork.setSampling(null);
        assertTrue(Sample.answer(fork, 5).stream().anyMatch(token -> token != the));
      }
    }
  }

  @Test
  void whatAProcessorThrowsIsThrownAndNoTokenIsLost() {
    AtomicInteger calls = new AtomicInteger();
    SamplingParams failing =
        new SamplingParams()
            .logitsProcessor(
                logits -> {
                  if (calls.incrementAndGet() == 3) throw new Oops();
                });
    List<Integer> expected;
    try (Session session = Sample.session()) {
      expected = Sample.answer(session, 5);
    }
    try (Session session = Sample.session()) {
      session.setSampling(failing);
      List<Integer> answer = new ArrayList<>(Sample.answer(session, 2));
      assertThrows(Oops.class, session::decode);
      answer.addAll(Sample.answer(session, 3));
      assertEquals(expected, answer);
    }
    calls.set(0);
    try (Session session = Sample.session();
        Session plain = Sample.session()) {
      session.setSampling(failing);
      calls.set(2);
      assertThrows(Oops.class, () -> Session.decodeBatch(List.of(plain, session), null));
      assertEquals(5, plain.tokenCount());
    }
  }

  @Test
  void logitsAreOfNoUseAfterTheirProcessor() {
    Logits[] kept = new Logits[1];
    try (Session session = Sample.session()) {
      session.setSampling(new SamplingParams().logitsProcessor(logits -> kept[0] = logits));
      session.decode();
      assertNotNull(kept[0]);
      assertThrows(IllegalStateException.class, () -> kept[0].get(0));
      assertThrows(IllegalStateException.class, () -> kept[0].set(0, 0));
      session.setSampling(new SamplingParams().logitsProcessor(logits -> logits.get(1 << 20)));
      assertThrows(IndexOutOfBoundsException.class, session::decode);
    }
  }

  @Test
  void theLogIsHeardUntilTheLastOfTheRuntimeIsClosed() {
    int before = Callbacks.count();
    List<String> lines = Collections.synchronizedList(new ArrayList<>());
    WaveRuntime runtime =
        WaveRuntime.create(
            new RuntimeParams()
                .threads(1)
                .log(LogLevel.DEBUG, (level, line) -> lines.add(level + line)));
    assertTrue(lines.get(0).startsWith("INFO"), lines.toString());
    Model model = runtime.open(Sample.FILE);
    runtime.close();
    assertEquals(before + 1, Callbacks.count());
    model.close();
    assertEquals(before, Callbacks.count());
    WaveInferException refused =
        assertThrows(
            WaveInferException.Unsupported.class,
            () ->
                WaveRuntime.create(
                    new RuntimeParams()
                        .device("abacus")
                        .log(LogLevel.DEBUG, System.getLogger("waveinfer"))));
    assertTrue(refused.getMessage().contains("abacus"), refused.getMessage());
    assertEquals(before, Callbacks.count());
  }

  @Test
  void whatTheLogThrowsIsThrownByCreate() {
    int before = Callbacks.count();
    List<Throwable> reported = Collections.synchronizedList(new ArrayList<>());
    Thread.UncaughtExceptionHandler handler = Thread.currentThread().getUncaughtExceptionHandler();
    Thread.currentThread().setUncaughtExceptionHandler((thread, what) -> reported.add(what));
    try {
      Oops oops = new Oops();
      RuntimeParams params = new RuntimeParams().threads(1);
      params.log(
          LogLevel.DEBUG,
          (level, line) -> {
            throw oops;
          });
      assertSame(oops, assertThrows(Oops.class, () -> WaveRuntime.create(params)));
    } finally {
      Thread.currentThread().setUncaughtExceptionHandler(handler);
    }
    assertEquals(List.of(), reported);
    assertEquals(before, Callbacks.count()); // and there is no runtime
  }

  @Test
  void aLogThatThrowsEndsNoVm() {
    AtomicInteger made = new AtomicInteger();
    RuntimeParams params =
        new RuntimeParams()
            .threads(1)
            .log(
                LogLevel.DEBUG,
                (level, line) -> {
                  if (made.get() > 0) throw new Oops();
                });
    try (WaveRuntime runtime = WaveRuntime.create(params);
        Session session = openQuietly(runtime, made)) {
      assertEquals(0, session.tokenCount());
    }
  }

  private static Session openQuietly(WaveRuntime runtime, AtomicInteger made) {
    made.set(1);
    Model model;
    try {
      model = runtime.open(Sample.FILE);
    } catch (Oops e) {
      return Sample.model.newSession();
    }
    try (model) {
      return model.newSession();
    }
  }
}
