package waveinfer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.ReadOnlyBufferException;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileSystem;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SessionTest {
  @TempDir Path folder;

  private static FloatBuffer direct(int floats) {
    return ByteBuffer.allocateDirect(4 * floats).order(ByteOrder.nativeOrder()).asFloatBuffer();
  }

  @Test
  void everyWayOfDecodingGivesTheSameTokens() {
    List<Integer> expected;
    try (Session session = Sample.session()) {
      expected = Sample.answer(session, 20);
      assertEquals(5 + 20, session.tokenCount());
      assertEquals(
          expected, java.util.Arrays.stream(session.tokens()).boxed().toList().subList(5, 25));
    }
    try (Session session = Sample.session()) {
      assertEquals(expected, session.events().limit(20).map(Event::token).toList());
    }
    try (Session session = Sample.session()) {
      List<Integer> accepted = new ArrayList<>();
      FloatBuffer logits = direct(Sample.model.info().vocab());
      for (int i = 0; i < 20; i++) {
        assertEquals(4096, session.logits(logits, null));
        int best = 0;
        for (int t = 1; t < 4096; t++) if (logits.get(t) > logits.get(best)) best = t;
        accepted.add(session.accept(best, null).token());
      }
      assertEquals(expected, accepted);
    }
    try (Session one = Sample.session();
        Session two = one.fork()) {
      List<Integer> batched = new ArrayList<>();
      for (int i = 0; i < 20; i++) {
        List<Event> events = Session.decodeBatch(List.of(one, two), null);
        assertEquals(events.get(0), events.get(1));
        batched.add(events.get(0).token());
      }
      assertEquals(expected, batched);
    }
    try (Session session = Sample.model.newSession();
        Task task =
            session.submit(
                new TaskParams()
                    .text("In the beginning")
                    .tokenize(TokenizeFlag.ADD_BOS)
                    .maxTokens(20))) {
      assertEquals(
          expected, task.events().filter(event -> !event.isEnd()).map(Event::token).toList());
    }
  }

  @Test
  void anAnswerEndsWithItsLastEvent() {
    int end = Sample.model.info().eosToken();
    SamplingParams onlyEnd = new SamplingParams().logitBias(Map.of(end, 1e6f));
    try (Session session = Sample.model.newSession(new SessionParams().sampling(onlyEnd))) {
      session.prefill(Sample.tokens(3));
      List<Event> events = session.events().toList();
      assertEquals(1, events.size());
      assertEquals(Event.Kind.END, events.get(0).kind());
      assertEquals(end, events.get(0).token());
      var iterator = session.iterator();
      iterator.next();
      assertFalse(iterator.hasNext());
      assertThrows(NoSuchElementException.class, iterator::next);
    }
  }

  @Test
  void stopStringsEndAnAnswer() {
    SamplingParams sampling = new SamplingParams().stops(List.of("of the", "unheard of"));
    try (Session session = Sample.session()) {
      session.setSampling(sampling);
      StringBuilder text = new StringBuilder();
      Event last = null;
      for (Event event : session) {
        text.append(event.text());
        last = event;
      }
      assertEquals(Event.Kind.STOP, last.kind());
      assertEquals(" ", text.toString());
    }
  }

  @Test
  void eventsListTheLikeliestTokens() {
    try (Session session = Sample.session()) {
      session.setSampling(new SamplingParams().topLogprobs(5));
      Event event = session.decode();
      assertEquals(5, event.top().size());
      assertEquals(event.token(), event.top().get(0).token());
      assertEquals(event.logprob(), event.top().get(0).logprob());
      assertTrue(event.logprob() < 0);
    }
  }

  @Test
  void theSameSeedGivesTheSameTokens() {
    SamplingParams sampling =
        new SamplingParams().temperature(1).topK(50).topP(0.95f).minP(0.01f).seed(7);
    List<List<Integer>> answers = new ArrayList<>();
    for (long seed : new long[] {7, 7, 8}) {
      SessionParams params = new SessionParams().sampling(sampling.seed(seed));
      try (Session session = Sample.model.newSession(params)) {
        session.append("In the beginning", TokenizeFlag.ADD_BOS);
        answers.add(Sample.answer(session, 20));
      }
    }
    assertEquals(answers.get(0), answers.get(1));
    assertNotEquals(answers.get(0), answers.get(2));
  }

  @Test
  void buffersOfAnyKindAreReadAndWrittenAlike() {
    int[] tokens = Sample.tokens(40);
    int vocab = Sample.model.info().vocab();
    FloatBuffer[] outs = {
      direct(40 * vocab),
      FloatBuffer.allocate(40 * vocab),
      ByteBuffer.allocateDirect(160 * vocab).order(ByteOrder.BIG_ENDIAN).asFloatBuffer(),
      direct(40 * vocab + 3).position(3)
    };
    IntBuffer directTokens =
        ByteBuffer.allocateDirect(168).order(ByteOrder.nativeOrder()).asIntBuffer();
    directTokens.put(-1).put(tokens).put(-1).position(1).limit(41);
    IntBuffer[] ins = {
      IntBuffer.wrap(tokens), directTokens, directTokens.slice(), directTokens.asReadOnlyBuffer()
    };
    for (int i = 0; i < outs.length; i++) {
      int position = outs[i].position();
      try (Session session = Sample.model.newSession()) {
        session.prefill(ins[i], new PrefillParams().logits(outs[i]), null);
        assertArrayEquals(tokens, session.tokens());
        assertEquals(position, outs[i].position());
        for (int at = 0; at < 40 * vocab; at += 101) {
          assertEquals(outs[0].get(at), outs[i].get(position + at));
        }
        float[] last = session.logits();
        for (int t = 0; t < vocab; t++) assertEquals(outs[0].get(39 * vocab + t), last[t], 0.05f);
        assertThrows(
            WaveInferException.Argument.class, () -> session.logits(direct(vocab - 1), null));
        assertThrows(
            ReadOnlyBufferException.class,
            () -> session.logits(direct(vocab).asReadOnlyBuffer(), null));
      }
    }
  }

  @Test
  void whatIsBehindTheLogitsInABufferStays() {
    int vocab = Sample.model.info().vocab();
    FloatBuffer[] outs = {
      direct(8 * vocab),
      FloatBuffer.allocate(8 * vocab),
      ByteBuffer.allocateDirect(32 * vocab).order(ByteOrder.BIG_ENDIAN).asFloatBuffer()
    };
    for (FloatBuffer out : outs) {
      unwritten(out);
      try (Session session = Sample.model.newSession()) {
        PrefillParams params = new PrefillParams().logits(out);
        session.prefill(Sample.tokens(3), params, null);
        onlyBegins(out, 3 * vocab);
        session.decode(); // pending: its logits are none of the next call's
        session.append("In the", params, null);
        onlyBegins(out, ((int) session.tokenCount() - 4) * vocab);
        session.append("", params, null);
        onlyBegins(out, 0);
        session.logits(out, null);
        onlyBegins(out, vocab);
      }
    }
  }

  /** So many numbers were written; the next call finds none. */
  private static void onlyBegins(FloatBuffer out, int count) {
    for (int i = 0; i < count; i++) assertNotEquals(-12345f, out.get(i), "at " + i);
    for (int i = count; i < out.limit(); i++) assertEquals(-12345f, out.get(i), "at " + i);
    unwritten(out);
  }

  private static void unwritten(FloatBuffer out) {
    for (int i = 0; i < out.limit(); i++) out.put(i, -12345f);
  }

  @Test
  void errorsLeaveTheSessionAsItWas() {
    try (Session session = Sample.session()) {
      int[] before = session.tokens();
      WaveInferException.Argument e =
          assertThrows(WaveInferException.Argument.class, () -> session.prefill(1, 2, 1 << 30));
      assertTrue(e.getMessage().contains("tokens[2]"), e.getMessage());
      assertEquals(Status.ARGUMENT, e.status());
      assertThrows(WaveInferException.Argument.class, () -> session.truncate(1000));
      assertThrows(WaveInferException.Argument.class, () -> session.truncate(-1));
      assertThrows(NullPointerException.class, () -> session.append(null));
      assertThrows(
          WaveInferException.Argument.class,
          () -> session.setSampling(new SamplingParams().temperature(-1)));
      assertThrows(
          WaveInferException.Unsupported.class,
          () -> session.forkAs(new SessionParams().policy(new PolicyParams().name("none")), null));
      assertArrayEquals(before, session.tokens());
    }
    try (Session empty = Sample.model.newSession()) {
      assertThrows(WaveInferException.State.class, empty::decode);
      assertThrows(WaveInferException.State.class, () -> empty.submit(null));
    }
    SessionParams small = new SessionParams().kvBudgetBytes(100_000);
    try (Session session = Sample.model.newSession(small)) {
      assertThrows(WaveInferException.Budget.class, () -> session.prefill(Sample.tokens(5000)));
      assertEquals(0, session.tokenCount());
    }
  }

  @Test
  void forksGoOnByThemselves() {
    try (Session session = Sample.session();
        Session fork = session.fork();
        Session full =
            session.forkAs(new SessionParams().policy(new PolicyParams().name("full")), null)) {
      List<Integer> expected = Sample.answer(session, 10);
      assertEquals(expected, Sample.answer(fork, 10));
      assertEquals(expected, Sample.answer(full, 10));
      session.truncate(5);
      assertEquals(5, session.tokenCount());
      assertEquals(15, fork.tokenCount());
      assertEquals(expected, Sample.answer(session, 10));
      assertEquals(expected.size() * 2, session.stats().decodeSteps() + 2, 1);
    }
  }

  @Test
  void aSavedSessionGoesOnWhereItWas() throws IOException {
    Path file = folder.resolve("sitzung — naïve.wi");
    List<Integer> expected;
    long bytes;
    try (Session session = Sample.session()) {
      session.save(file);
      bytes = session.savedBytes();
      assertEquals(bytes, Files.size(file));
      try (FileChannel to =
          FileChannel.open(
              folder.resolve("channel.wi"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
        session.save(to, null);
      }
      assertEquals(-1, Files.mismatch(file, folder.resolve("channel.wi")));
      expected = Sample.answer(session, 10);
    }
    try (Session loaded = Sample.model.load(file)) {
      assertEquals(expected, Sample.answer(loaded, 10));
    }
    try (FileChannel from = FileChannel.open(file);
        Session loaded = Sample.model.load(from, bytes, new SessionParams(), null)) {
      assertEquals(expected, Sample.answer(loaded, 10));
    }
  }

  @Test
  void aPathIsItsBytes() throws IOException, InterruptedException {
    // A name that is no UTF-8: no string says it, but listing its folder gives its path.
    String make = "mkdir \"$(printf 'no\\377 \\303\\244%%20')\"";
    assertEquals(
        0, new ProcessBuilder("sh", "-c", make).directory(folder.toFile()).start().waitFor());
    Path strange;
    try (var all = Files.list(folder)) {
      strange = all.findFirst().orElseThrow();
    }
    Path relative = Path.of("").toAbsolutePath().relativize(strange);
    try (Session session = Sample.session()) {
      session.save(strange.resolve("session.wi"));
      assertTrue(Files.exists(strange.resolve("session.wi")));
      try (Session loaded = Sample.model.load(relative.resolve("session.wi"))) {
        assertEquals(Sample.answer(session, 3), Sample.answer(loaded, 3));
      }
    }
    Files.copy(Sample.FILE, strange.resolve("model.gguf"));
    Sample.runtime.open(strange.resolve("model.gguf")).close();
    try (Call call = Call.enter()) {
      byte[] name = Native.text(call.path(strange)); // of a folder
      assertEquals("no\u00ff \u00c3\u00a4%20", lastOf(name));
      assertEquals("../a b", new String(Native.text(call.path(Path.of("../a b/")))));
    }
  }

  private static String lastOf(byte[] path) {
    String text = new String(path, StandardCharsets.ISO_8859_1);
    return text.substring(text.lastIndexOf('/') + 1);
  }

  @Test
  void aPathOfAnotherFileSystemIsRefused() throws IOException {
    KvParams shape = new KvParams(1, 1, 1, 8);
    Class<WaveInferException.Argument> argument = WaveInferException.Argument.class;
    try (FileSystem zip =
            FileSystems.newFileSystem(folder.resolve("x.zip"), Map.of("create", "true"));
        Session session = Sample.session();
        KvStore kv = Sample.runtime.newKvStore(shape)) {
      Path file = folder.resolve("a file");
      session.save(file);
      Path same = zip.getPath(file.toString()); // by its text
      Path model = zip.getPath(Sample.FILE.toAbsolutePath().toString());
      assertThrows(argument, () -> session.save(same));
      assertThrows(argument, () -> Sample.model.load(same));
      assertThrows(argument, () -> Sample.runtime.open(model));
      assertThrows(argument, () -> kv.save(same, null));
      assertThrows(argument, () -> Sample.runtime.loadKvStore(same, shape, null));
      RuntimeParams params = new RuntimeParams().spillFolder(zip.getPath(folder.toString()));
      assertTrue(
          assertThrows(argument, () -> WaveRuntime.create(params))
              .getMessage()
              .startsWith("no path of the default file system: jar:file:"));
    }
  }

  @Test
  void whatAChannelThrowsIsThrown() throws IOException {
    try (Session session = Sample.session()) {
      IOException full = new IOException("full");
      WritableByteChannel to =
          Channels.newChannel(
              new java.io.OutputStream() {
                @Override
                public void write(int b) throws IOException {
                  throw full;
                }
              });
      assertEquals(full, assertThrows(IOException.class, () -> session.save(to, null)));
      assertEquals(5, session.tokenCount());
      session.save(folder.resolve("s.wi"));
    }
    byte[] saved = Files.readAllBytes(folder.resolve("s.wi"));
    var half = new java.io.ByteArrayInputStream(saved, 0, saved.length / 2);
    assertThrows(
        EOFException.class,
        () -> Sample.model.load(Channels.newChannel(half), saved.length, null, null));
    saved[saved.length / 2] ^= 1;
    Files.write(folder.resolve("broken.wi"), saved);
    assertThrows(
        WaveInferException.Format.class, () -> Sample.model.load(folder.resolve("broken.wi")));
    assertThrows(WaveInferException.Io.class, () -> Sample.model.load(folder.resolve("none.wi")));
    WaveInferException.Io e =
        assertThrows(
            WaveInferException.Io.class,
            () -> Sample.model.load(folder.resolve("nowhere/none.wi")));
    assertEquals(2, e.nativeCode()); // ENOENT
  }

  @Test
  void aSlowTierGivesTheSameTokens() {
    int[] tokens = Sample.tokens(12_000);
    List<Integer> expected;
    try (Session session = Sample.model.newSession()) {
      session.prefill(tokens);
      expected = Sample.answer(session, 5);
      assertTrue(session.stats().segments() > 0);
    }
    RuntimeParams params = new RuntimeParams().threads(2).spillFolder(folder);
    try (WaveRuntime runtime = WaveRuntime.create(params);
        Model model = runtime.open(Sample.FILE);
        Session session = model.newSession(new SessionParams().kvFastShare(0.1f))) {
      session.prefill(tokens);
      assertEquals(expected, Sample.answer(session, 5));
      SessionStats stats = session.stats();
      assertTrue(stats.slowBytes() > 0);
      assertEquals(
          stats.bufferMisses(),
          stats.bufferAdmissions() + stats.bufferRefusals() + stats.bufferLate());
      assertTrue(runtime.stats().slowWrittenBytes() > 0);
    } catch (WaveInferException.Unsupported e) { // a folder in memory, where tests run
      assertTrue(e.getMessage().contains("memory"), e.getMessage());
    }
  }
}
