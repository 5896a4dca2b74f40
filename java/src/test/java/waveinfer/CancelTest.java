package waveinfer;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

@Timeout(60)
class CancelTest {
  @TempDir Path folder;

  @AfterEach
  void noInterruptIsLeft() {
    Thread.interrupted();
  }

  private static void interrupted(Executable call) {
    Thread.currentThread().interrupt();
    assertThrows(WaveInferException.Cancelled.class, call);
    assertTrue(Thread.interrupted(), "the interrupt status is gone");
  }

  @Test
  void anInterruptedThreadsCallsAreCancelled() throws Exception {
    try (Session session = Sample.session();
        KvStore kv = Sample.runtime.newKvStore(new KvParams(1, 1, 1, 8))) {
      Path file = folder.resolve("s.wi");
      session.save(file);
      interrupted(() -> Sample.runtime.open(Sample.FILE));
      interrupted(() -> session.prefill(1, 2));
      interrupted(() -> session.append("x"));
      interrupted(session::decode);
      interrupted(() -> session.accept(1, null));
      interrupted(() -> session.save(file));
      interrupted(() -> Sample.model.load(file));
      interrupted(() -> Session.decodeBatch(List.of(session), null));
      interrupted(
          () -> session.forkAs(new SessionParams().policy(new PolicyParams().name("full")), null));
      FloatBuffer row = FloatBuffer.allocate(8);
      kv.append(0, 1, row, row);
      interrupted(() -> kv.attend(0, 1, row, FloatBuffer.allocate(8), null, null));
      interrupted(() -> kv.save(file, null));
      assertEquals(5, session.tokenCount());
      assertEquals(Event.Kind.TOKEN, session.decode().kind());
    }
  }

  @Test
  void anInterruptEndsARunningPrefill() throws InterruptedException {
    try (Session session = Sample.session()) {
      CountDownLatch inside = new CountDownLatch(1);
      AtomicReference<Throwable> thrown = new AtomicReference<>();
      long[] left = new long[1];
      boolean[] flag = new boolean[1];
      Thread reader =
          new Thread(
              () -> {
                try {
                  session.prefill(
                      Sample.tokens(200_000),
                      new PrefillParams().progress((done, total) -> inside.countDown()),
                      null);
                } catch (Throwable e) {
                  left[0] = System.nanoTime();
                  flag[0] = Thread.currentThread().isInterrupted();
                  thrown.set(e);
                }
              });
      reader.start();
      inside.await();
      long begun = System.nanoTime();
      reader.interrupt();
      reader.join();
      assertEquals(WaveInferException.Cancelled.class, thrown.get().getClass());
      assertTrue(flag[0], "the interrupt status is gone");
      long ms = (left[0] - begun) / 1_000_000;
      System.out.println("a prefill ended " + ms + " ms after the interrupt");
      assertTrue(ms < 2000, ms + " ms");
      assertEquals(5, session.tokenCount());
    }
  }

  @Test
  void anInterruptEndsACallWhoseCallbackHasWrittenToAChannel() throws Exception {
    try (FileChannel channel =
            FileChannel.open(
                folder.resolve("progress"), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
        Session session = Sample.session()) {
      CountDownLatch written = new CountDownLatch(1);
      PrefillParams params =
          new PrefillParams()
              .progress(
                  (done, total) -> {
                    if (written.getCount() == 0) return;
                    write(channel);
                    written.countDown();
                  });
      Thread reader = Thread.currentThread();
      long[] begun = new long[1];
      Thread shooter =
          new Thread(
              () -> {
                assertDoesNotThrow(() -> written.await());
                LockSupport.parkNanos(50_000_000);
                begun[0] = System.nanoTime();
                reader.interrupt();
              });
      shooter.start();
      assertThrows(
          WaveInferException.Cancelled.class,
          () -> session.prefill(Sample.tokens(20_000), params, null));
      long ms = (System.nanoTime() - begun[0]) / 1_000_000;
      assertTrue(Thread.interrupted(), "the interrupt status is gone");
      assertTrue(ms < 2000, ms + " ms");
      shooter.join();
      assertEquals(5, session.tokenCount());
    }
  }

  private static void write(FileChannel channel) {
    try {
      channel.write(ByteBuffer.allocate(1));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  @Test
  void aTokenEndsCallsOfManyThreads() throws InterruptedException {
    CancelToken cancel = new CancelToken();
    CountDownLatch inside = new CountDownLatch(2);
    AtomicReference<Throwable> other = new AtomicReference<>();
    Runnable read =
        () -> {
          try (Session session = Sample.session()) {
            PrefillParams params =
                new PrefillParams().chunkTokens(64).progress((done, total) -> inside.countDown());
            session.prefill(Sample.tokens(200_000), params, cancel);
            other.set(new AssertionError("not cancelled"));
          } catch (WaveInferException.Cancelled e) {
            if (Thread.currentThread().isInterrupted()) other.set(e);
          } catch (Throwable e) {
            other.set(e);
          }
        };
    Thread one = new Thread(read);
    Thread two = new Thread(read);
    one.start();
    two.start();
    inside.await();
    cancel.trigger();
    one.join();
    two.join();
    assertNull(other.get());
    try (Session session = Sample.session()) {
      assertTrue(cancel.isTriggered());
      assertThrows(WaveInferException.Cancelled.class, () -> session.decode(cancel));
      assertEquals(Event.Kind.TOKEN, session.decode().kind()); // another call
      cancel.reset();
      assertEquals(Event.Kind.TOKEN, session.decode(cancel).kind());
    }
  }

  @Test
  void aCallInACallbackIsCancelledAndItsOuterOneToo() {
    try (Session session = Sample.session();
        Session other = Sample.session()) {
      boolean[] inner = new boolean[1];
      PrefillParams params =
          new PrefillParams()
              .chunkTokens(64)
              .progress(
                  (done, total) -> {
                    if (inner[0]) return;
                    Thread.currentThread().interrupt();
                    assertThrows(WaveInferException.Cancelled.class, other::decode);
                    inner[0] = true;
                  });
      assertThrows(
          WaveInferException.Cancelled.class,
          () -> session.prefill(Sample.tokens(2000), params, null));
      assertTrue(Thread.interrupted());
      assertTrue(inner[0]);
      assertEquals(5, session.tokenCount());
    }
  }

  @Test
  void aLateInterruptEndsNoOtherCall() throws InterruptedException {
    Random random = Sample.random();
    Thread reader = Thread.currentThread();
    boolean[] done = new boolean[1];
    Thread shooter =
        new Thread(
            () -> {
              for (int i = 0; i < 300; i++) {
                java.util.concurrent.locks.LockSupport.parkNanos(random.nextInt(2_000_000));
                reader.interrupt();
              }
              done[0] = true;
            });
    int cancelled = 0;
    try (Session session = Sample.session()) {
      shooter.start();
      while (shooter.isAlive()) {
        try {
          session.decode();
          if (session.tokenCount() > 200) session.truncate(5);
        } catch (WaveInferException.Cancelled e) {
          cancelled++;
          assertTrue(Thread.interrupted(), "cancelled without an interrupt");
        }
      }
      Thread.interrupted();
      for (int i = 0; i < 100; i++) session.decode();
    }
    shooter.join();
    assertTrue(done[0]);
    System.out.println(cancelled + " calls cancelled");
    assertTrue(cancelled > 0);
    assertFalse(reader.isInterrupted());
  }

  @Test
  void aWaitForATaskIsInterrupted() {
    try (Session session = Sample.session();
        Task task = session.submit(new TaskParams().maxTokens(1))) {
      task.events().toList();
      interrupted(() -> task.await(null));
    }
  }
}
