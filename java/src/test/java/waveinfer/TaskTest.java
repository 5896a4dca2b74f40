package waveinfer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class TaskTest {
  private static TaskParams some(long maxTokens) {
    return new TaskParams().maxTokens(maxTokens);
  }

  @Test
  void tasksAnswerAtTheSameTime() {
    List<Integer> expected;
    try (Session session = Sample.session()) {
      expected = Sample.answer(session, 30);
    }
    List<Task> tasks = new ArrayList<>();
    try (Session session = Sample.session()) {
      for (int i = 0; i < 8; i++) {
        try (Session fork = session.fork()) { // the task keeps it
          tasks.add(fork.submit(some(30).priority(i - 4)));
        }
      }
    }
    for (Task task : tasks) {
      try (task) {
        List<Event> events = task.events().toList();
        assertEquals(Event.Kind.LIMIT, events.get(30).kind());
        assertEquals(-1, events.get(30).token());
        assertEquals(expected, events.subList(0, 30).stream().map(Event::token).toList());
        TaskInfo info = task.info();
        assertEquals(TaskInfo.State.DONE, info.state());
        assertTrue(info.state().isEnd());
        assertEquals(30, info.answerTokens());
        assertTrue(info.firstTokenNs() > 0);
      }
    }
  }

  @Test
  void eventsArePolledWhenTheBellRings() throws InterruptedException {
    Semaphore bell = new Semaphore(0);
    try (Session session = Sample.session();
        Task task = session.submit(some(10).whenReady(bell::release))) {
      List<Event> events = new ArrayList<>();
      while (events.isEmpty() || !events.get(events.size() - 1).isEnd()) {
        bell.acquire();
        events.addAll(task.poll());
      }
      assertEquals(11, events.size());
      assertEquals(List.of(), task.poll());
      assertTrue(task.await(Duration.ZERO)); // it has ended
      assertEquals(Event.Kind.TOKEN, session.decode().kind());
    }
  }

  @Test
  void anIteratorTakesNoMoreEventsThanItGave() {
    List<Integer> expected;
    try (Session session = Sample.session()) {
      expected = Sample.answer(session, 60);
    }
    try (Session session = Sample.session();
        Task task = session.submit(some(60))) {
      while (!task.info().state().isEnd()) Thread.onSpinWait();
      List<Event> events = new ArrayList<>();
      Iterator<Event> iterator = task.iterator();
      for (int i = 0; i < 3; i++) events.add(iterator.next());
      task.events().limit(4).forEach(events::add);
      assertTrue(task.await(Duration.ZERO));
      events.addAll(task.poll());
      assertEquals(
          expected, events.stream().map(Event::token).filter(token -> token >= 0).toList());
      assertEquals(Event.Kind.LIMIT, events.get(60).kind());
    }
    try (Session session = Sample.session();
        Task task = session.submit(some(60))) {
      while (!task.info().state().isEnd()) Thread.onSpinWait();
      Iterator<Event> iterator = task.iterator();
      for (int i = 0; i < 58; i++) iterator.next();
      assertEquals(3, task.poll().size());
    }
  }

  @Test
  void aSessionIsBusyUntilItsTaskEnds() {
    try (Session session = Sample.session();
        Task task = session.submit(some(1_000_000))) {
      assertThrows(WaveInferException.Busy.class, session::decode);
      assertThrows(WaveInferException.Busy.class, () -> session.submit(null));
      session.stats();
      task.cancel();
      List<Event> events = task.events().toList();
      assertEquals(Event.Kind.CANCELLED, events.get(events.size() - 1).kind());
      assertEquals(TaskInfo.State.CANCELLED, task.info().state());
      assertEquals(Event.Kind.TOKEN, session.decode().kind());
    }
  }

  @Test
  void closingTheLastHandleCancels() throws InterruptedException {
    try (Session session = Sample.session()) {
      Task task = session.submit(some(1_000_000));
      Task shared = task.share();
      task.close();
      assertFalse(shared.info().state().isEnd());
      shared.close();
      for (int i = 0; ; i++) {
        try {
          session.decode();
          return;
        } catch (WaveInferException.Busy e) {
          assertTrue(i < 1000);
          Thread.sleep(5);
        }
      }
    }
  }

  @Test
  void aSharedTaskGoesOnWhenOneHandleIsClosed() throws InterruptedException {
    Semaphore bell = new Semaphore(0);
    byte[] file = Sample.bytes();
    ByteBuffer direct = ByteBuffer.allocateDirect(file.length).put(file).flip();
    try (Model model = Sample.runtime.open(direct, new ModelParams(), null);
        Session session = model.newSession()) {
      session.prefill(1, 2, 3);
      Task task = session.submit(some(300).whenReady(bell::release));
      try (Task shared = task.share()) {
        task.close();
        bell.drainPermits();
        bell.acquire();
        List<Event> events = shared.events().toList();
        assertEquals(Event.Kind.LIMIT, events.get(300).kind());
      }
    }
  }

  @Test
  void aTaskIsClosedByWhatTheEngineCalls() throws InterruptedException {
    ByteBuffer direct = ByteBuffer.allocateDirect((int) Sample.FILE.toFile().length());
    Model model = Sample.runtime.open(direct.put(Sample.bytes()).flip(), new ModelParams(), null);
    for (boolean byItsBell : new boolean[] {true, false}) {
      CompletableFuture<Task> task = new CompletableFuture<>();
      Semaphore closed = new Semaphore(0);
      Runnable close =
          () -> {
            task.join().close();
            closed.release();
          };
      TaskParams params = some(1_000_000);
      if (byItsBell) params.whenReady(close);
      else params.sampling(new SamplingParams().logitsProcessor(logits -> close.run()));
      try (Session session = model.newSession()) {
        session.prefill(1, 2, 3);
        task.complete(session.submit(params));
        assertTrue(closed.tryAcquire(20, TimeUnit.SECONDS), "the engine waits for itself");
        task.join().close();
      }
    }
    model.close();
    try (Session session = Sample.session();
        Task next = session.submit(some(3))) {
      assertEquals(4, next.events().toList().size());
    }
  }

  @Test
  void whatTheEngineCallsCannotWaitForIt() throws InterruptedException {
    TaskParams reads = new TaskParams().tokens(Sample.tokens(100_000)).maxTokens(1);
    for (boolean byItsBell : new boolean[] {true, false}) {
      CompletableFuture<Task> reading = new CompletableFuture<>();
      CompletableFuture<List<WaveInferException>> thrown = new CompletableFuture<>();
      Runnable wait =
          () -> {
            Task task = reading.join(); // which has no events while the engine is here
            if (thrown.isDone()) return;
            Class<WaveInferException.State> state = WaveInferException.State.class;
            thrown.complete(
                List.of(
                    assertThrows(state, () -> task.await(null)),
                    assertThrows(state, () -> task.await(Duration.ofSeconds(5))),
                    assertThrows(state, () -> task.iterator().next())));
          };
      TaskParams params = some(3);
      if (byItsBell) params.whenReady(wait);
      else params.sampling(new SamplingParams().logitsProcessor(logits -> wait.run()));
      try (Session session = Sample.session();
          Session other = Sample.model.newSession();
          Task task = session.submit(params);
          Task endless = other.submit(reads)) {
        reading.complete(endless);
        for (WaveInferException e : thrown.get(20, TimeUnit.SECONDS)) {
          assertTrue(e.getMessage().startsWith("the engine waits for this callback"));
        }
        endless.cancel();
        assertEquals(4, task.events().toList().size());
      } catch (ExecutionException | TimeoutException e) {
        throw new AssertionError("the engine waits for itself", e);
      }
    }
  }

  @Test
  void aWaitEndsWithItsTime() {
    // One that reads for seconds has no events.
    TaskParams reads = new TaskParams().tokens(Sample.tokens(100_000)).maxTokens(1);
    try (Session session = Sample.model.newSession();
        Task task = session.submit(reads)) {
      assertFalse(task.await(Duration.ZERO));
      assertFalse(task.await(Duration.ofMillis(50)));
      assertFalse(task.await(Duration.ofSeconds(Long.MIN_VALUE)));
      Executor later = CompletableFuture.delayedExecutor(100, TimeUnit.MILLISECONDS);
      CompletableFuture.runAsync(task::cancel, later);
      assertTrue(task.await(Duration.ofSeconds(Long.MAX_VALUE)));
      assertTrue(task.await(null));
    }
  }

  @Test
  @SuppressWarnings("try")
  void whatAProcessorThrowsInATaskIsThrownByItsPoll() {
    IllegalArgumentException oops = new IllegalArgumentException();
    int[] calls = new int[1];
    SamplingParams failing =
        new SamplingParams()
            .logitsProcessor(
                logits -> {
                  if (++calls[0] == 4) throw oops;
                });
    List<Event> events = new ArrayList<>();
    try (Session session = Sample.session();
        Task task = session.submit(some(100).sampling(failing))) {
      session.close();
      System.gc(); // the task has the processor
      assertEquals(
          oops, assertThrows(IllegalArgumentException.class, () -> task.forEach(events::add)));
      assertEquals(3, events.size());
    }
  }

  @Test
  void whatAProcessorThrowsInOneForksTaskEndsNoOther() {
    IllegalArgumentException oops = new IllegalArgumentException();
    AtomicInteger calls = new AtomicInteger();
    SamplingParams failing =
        new SamplingParams()
            .logitsProcessor(
                logits -> {
                  if (calls.incrementAndGet() == 21) throw oops;
                });
    int ended = 0;
    try (Session session = Sample.session()) {
      session.setSampling(failing);
      try (Session fork = session.fork();
          Task one = session.submit(some(30));
          Task other = fork.submit(some(30))) {
        for (Task task : List.of(one, other)) {
          try {
            assertEquals(31, task.events().toList().size());
          } catch (IllegalArgumentException e) {
            assertEquals(oops, e);
            ended++;
          }
        }
      }
      try (Task again = session.submit(some(2))) { // what was thrown before is nothing to it
        assertEquals(3, again.events().toList().size());
      }
    }
    assertEquals(1, ended);
  }

  @Test
  void theAnswerEndsWithoutItsLastEvent() {
    for (boolean byItsIterator : new boolean[] {true, false}) {
      try (Session session = Sample.session();
          Task task = session.submit(some(3));
          Call call = Call.enter()) {
        while (!task.info().state().isEnd()) Thread.onSpinWait();
        long array = call.allocate(16 * wi_event.struct_bytes());
        for (int i = 0; i < 16; i++) {
          new wi_event(array + i * wi_event.struct_bytes(), false)
              .setStruct_size((int) wi_event.struct_bytes());
        }
        // As where the engine had no memory for it: it is gone.
        long address = call.use(task);
        call.check(Native.wi_task_poll(address, array, 16, call.out(), call.error()));
        assertEquals(4, call.outLong());
        List<Event> events = byItsIterator ? task.events().toList() : task.poll();
        assertEquals(List.of(Event.Kind.END), events.stream().map(Event::kind).toList());
        assertEquals(List.of(), task.poll());
      }
    }
  }

  @Test
  void theAnswerEndsForEveryHandleOfItsTask() {
    try (Session session = Sample.session();
        Task task = session.submit(some(3));
        Task shared = task.share()) {
      assertEquals(4, task.events().toList().size());
      assertEquals(Event.Kind.END, shared.iterator().next().kind());
    }
  }

  @Test
  void whatABellThrowsCancelsItsTask() {
    IllegalArgumentException oops = new IllegalArgumentException();
    try (Session session = Sample.session();
        Task task =
            session.submit(
                some(1_000_000)
                    .whenReady(
                        () -> {
                          throw oops;
                        }))) {
      assertEquals(
          oops, assertThrows(IllegalArgumentException.class, () -> task.events().forEach(e -> {})));
      while (!task.info().state().isEnd()) Thread.onSpinWait();
      assertEquals(TaskInfo.State.CANCELLED, task.info().state());
    }
  }

  @Test
  void aFailedTaskThrowsWhatACallWouldHave() {
    SessionParams small = new SessionParams().kvBudgetBytes(200_000);
    try (Session session = Sample.model.newSession(small);
        Task task = session.submit(new TaskParams().tokens(Sample.tokens(5000)).maxTokens(1))) {
      WaveInferException e = assertThrows(WaveInferException.class, () -> task.events().toList());
      assertEquals(Status.BUDGET, e.status());
      assertEquals(TaskInfo.State.FAILED, task.info().state());
      assertEquals(e.getMessage(), task.info().message());
    }
  }

  @Test
  void aTaskThatFailsBeforeItsSamplingTookEffectLeavesTheSessionItsOwn() {
    AtomicInteger called = new AtomicInteger();
    try (Session session = Sample.session()) {
      session.setSampling(new SamplingParams().logitsProcessor(logits -> called.incrementAndGet()));
      for (int i = 0; i < 3; i++) {
        try (Task task = session.submit(some(1L << 40).sampling(new SamplingParams()))) {
          assertTrue(task.await(null));
          assertEquals(List.of(Event.Kind.FAILED), task.poll().stream().map(Event::kind).toList());
          assertEquals(Status.BUDGET, task.info().status());
        }
        System.gc();
      }
      assertEquals(Event.Kind.TOKEN, session.decode().kind());
      assertEquals(1, called.get());
      try (Task task = session.submit(some(2).sampling(new SamplingParams()))) {
        assertEquals(3, task.events().toList().size());
      }
      session.decode();
      assertEquals(1, called.get());
    }
  }

  @Test
  void aSubmitThatFailsLeavesNoBell() {
    TaskParams params = new TaskParams().whenReady(() -> {});
    try (Session empty = Sample.model.newSession();
        Session session = Sample.session();
        Task task = session.submit(some(1_000_000))) {
      int before = Callbacks.count();
      assertThrows(WaveInferException.State.class, () -> empty.submit(params));
      assertThrows(WaveInferException.Busy.class, () -> session.submit(params));
      assertTrue(Callbacks.count() <= before, "callbacks are left");
      assertFalse(task.info().state().isEnd());
    }
  }

  @Test
  void aTaskHasADescriptor() {
    try (Session session = Sample.session();
        Task task = session.submit(some(1))) {
      assertTrue(Files.exists(Path.of("/proc/self/fd/" + task.descriptor())));
      assertEquals(2, task.events().toList().size());
    }
  }
}
