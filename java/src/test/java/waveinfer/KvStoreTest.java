package waveinfer;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.channels.Channels;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class KvStoreTest {
  private static final int LAYERS = 2;
  private static final int QUERY_HEADS = 4;
  private static final int KV_HEADS = 2;
  private static final int DIM = 16;
  private static final int TOKENS = 300;
  private static final KvParams SHAPE =
      new KvParams(LAYERS, QUERY_HEADS, KV_HEADS, DIM).kvType(KvType.F32);

  @TempDir Path folder;

  private final Random random = Sample.random();
  private final float[] keys = numbers(TOKENS * KV_HEADS * DIM);
  private final float[] values = numbers(TOKENS * KV_HEADS * DIM);
  private final float[] queries = numbers(QUERY_HEADS * DIM);

  private float[] numbers(int count) {
    float[] numbers = new float[count];
    for (int i = 0; i < count; i++) numbers[i] = (float) random.nextGaussian();
    return numbers;
  }

  private KvStore filled() {
    KvStore kv = Sample.runtime.newKvStore(SHAPE);
    for (int layer = 0; layer < LAYERS; layer++) {
      kv.append(layer, TOKENS, FloatBuffer.wrap(keys), FloatBuffer.wrap(values));
    }
    return kv;
  }

  private float[] attend(KvStore kv, float[] lse) {
    float[] out = new float[QUERY_HEADS * DIM];
    kv.attend(1, 1, FloatBuffer.wrap(queries), FloatBuffer.wrap(out), FloatBuffer.wrap(lse), null);
    return out;
  }

  /** softmax(q * k / sqrt(head_dim)) * v of a head over the first tokens. */
  private double[] exact(int head, int tokens, double[] lse) {
    int kvHead = head / (QUERY_HEADS / KV_HEADS);
    double[] out = new double[DIM];
    double sum = 0;
    for (int t = 0; t < tokens; t++) {
      int row = (t * KV_HEADS + kvHead) * DIM;
      double score = 0;
      for (int d = 0; d < DIM; d++) score += (double) queries[head * DIM + d] * keys[row + d];
      double weight = Math.exp(score / Math.sqrt(DIM));
      sum += weight;
      for (int d = 0; d < DIM; d++) out[d] += weight * values[row + d];
    }
    for (int d = 0; d < DIM; d++) out[d] /= sum;
    lse[head] = Math.log(sum);
    return out;
  }

  private void check(KvStore kv, int tokens) {
    float[] lse = new float[QUERY_HEADS];
    float[] out = attend(kv, lse);
    double[] expectedLse = new double[QUERY_HEADS];
    for (int head = 0; head < QUERY_HEADS; head++) {
      double[] expected = exact(head, tokens, expectedLse);
      for (int d = 0; d < DIM; d++) assertEquals(expected[d], out[head * DIM + d], 1e-4);
      assertEquals(expectedLse[head], lse[head], 1e-4); // natural log
    }
  }

  @Test
  void attentionIsExactBeforeSealing() {
    try (KvStore kv = filled()) {
      check(kv, TOKENS);
      assertEquals(TOKENS, kv.stats().tokens());
      try (KvStore fork = kv.fork();
          KvStore shared = fork.share()) {
        fork.truncate(100);
        check(shared, 100);
        check(kv, TOKENS);
      }
    }
  }

  @Test
  void sealingUnderFullLosesNothing() {
    KvParams full =
        new KvParams(LAYERS, QUERY_HEADS, KV_HEADS, DIM)
            .kvType(KvType.F32)
            .policy(
                new PolicyParams()
                    .name("full")
                    .segmentTokens(64)
                    .decodeSegmentTokens(64)
                    .localWindow(-1));
    try (KvStore kv = Sample.runtime.newKvStore(full)) {
      for (int layer = 0; layer < LAYERS; layer++) {
        kv.append(layer, TOKENS, FloatBuffer.wrap(keys), FloatBuffer.wrap(values));
      }
      kv.seal();
      assertTrue(kv.stats().segments() > 0);
      check(kv, TOKENS);
    }
  }

  @Test
  void directBuffersGiveTheSame() {
    try (KvStore kv = filled()) {
      FloatBuffer in =
          ByteBuffer.allocateDirect(4 * queries.length)
              .order(ByteOrder.nativeOrder())
              .asFloatBuffer()
              .put(queries)
              .flip();
      FloatBuffer out =
          ByteBuffer.allocateDirect(4 * queries.length)
              .order(ByteOrder.nativeOrder())
              .asFloatBuffer();
      kv.attend(1, 1, in, out, null, null);
      float[] expected = attend(kv, new float[QUERY_HEADS]);
      for (int i = 0; i < expected.length; i++) assertEquals(expected[i], out.get(i));
    }
  }

  @Test
  void whatIsBehindAnOutputInItsBufferStays() {
    try (KvStore kv = filled()) {
      float[] lse = new float[QUERY_HEADS];
      float[] expected = attend(kv, lse);
      FloatBuffer out = FloatBuffer.allocate(1 + expected.length + 1).put(0, 7).position(1);
      FloatBuffer lseOut = FloatBuffer.allocate(lse.length + 1);
      out.put(1 + expected.length, 8);
      lseOut.put(lse.length, 9);
      kv.attend(1, 1, FloatBuffer.wrap(queries), out, lseOut, null);
      assertEquals(FloatBuffer.wrap(expected), out.slice(1, expected.length));
      assertEquals(FloatBuffer.wrap(lse), lseOut.slice(0, lse.length));
      assertEquals(7, out.get(0));
      assertEquals(8, out.get(1 + expected.length));
      assertEquals(9, lseOut.get(lse.length));
    }
  }

  @Test
  void aStoreIsSavedAndLoaded() throws IOException {
    Path file = folder.resolve("kv.wi");
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (KvStore kv = filled()) {
      kv.save(file, null);
      kv.save(Channels.newChannel(bytes), null);
      assertEquals(kv.savedBytes(), bytes.size());
    }
    try (KvStore kv = Sample.runtime.loadKvStore(file, SHAPE, null)) {
      check(kv, TOKENS);
    }
    var from = Channels.newChannel(new ByteArrayInputStream(bytes.toByteArray()));
    try (KvStore kv = Sample.runtime.loadKvStore(from, bytes.size(), SHAPE, null)) {
      check(kv, TOKENS);
    }
    assertThrows(
        WaveInferException.Mismatch.class,
        () -> Sample.runtime.loadKvStore(file, new KvParams(1, 4, 2, 16), null));
    assertThrows(WaveInferException.Format.class, () -> Sample.model.load(file));
  }

  @Test
  void aStoreIsNotLoadedWithoutItsShape() {
    Path file = folder.resolve("kv.wi");
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (KvStore kv = filled()) {
      kv.save(file, null);
      assertDoesNotThrow(() -> kv.save(Channels.newChannel(bytes), null));
    }
    String[] names = {"layers", "queryHeads", "kvHeads", "headDim"};
    for (int wrong : new int[] {0, -1}) {
      for (int i = 0; i < names.length; i++) {
        int[] of = {LAYERS, QUERY_HEADS, KV_HEADS, DIM};
        of[i] = wrong;
        KvParams params = new KvParams(of[0], of[1], of[2], of[3]).kvType(KvType.F32);
        var from = Channels.newChannel(new ByteArrayInputStream(bytes.toByteArray()));
        WaveRuntime runtime = Sample.runtime;
        Class<WaveInferException.Argument> argument = WaveInferException.Argument.class;
        for (WaveInferException e :
            List.of(
                assertThrows(argument, () -> runtime.loadKvStore(file, params, null)),
                assertThrows(
                    argument, () -> runtime.loadKvStore(from, bytes.size(), params, null)))) {
          assertTrue(e.getMessage().startsWith(names[i] + " is " + wrong), e.getMessage());
        }
      }
    }
  }

  @Test
  void wrongArgumentsAreRefused() {
    try (KvStore kv = Sample.runtime.newKvStore(SHAPE)) {
      FloatBuffer few = FloatBuffer.allocate(KV_HEADS * DIM - 1);
      FloatBuffer one = FloatBuffer.allocate(QUERY_HEADS * DIM);
      Class<? extends Throwable> argument = WaveInferException.Argument.class;
      assertThrows(argument, () -> kv.append(0, 1, few, one));
      assertThrows(argument, () -> kv.append(0, 1, one, few));
      assertThrows(argument, () -> kv.append(0, -1, one, one));
      assertThrows(argument, () -> kv.append(0, Long.MAX_VALUE, one, one));
      assertThrows(argument, () -> kv.append(LAYERS, 1, one, one));
      assertThrows(argument, () -> kv.append(-1, 1, one, one));
      assertThrows(argument, () -> kv.attend(0, 2, one, one, null, null));
      assertThrows(argument, () -> kv.attend(0, 1, one, one, FloatBuffer.allocate(3), null));
      FloatBuffer infinite = FloatBuffer.allocate(KV_HEADS * DIM).put(0, Float.POSITIVE_INFINITY);
      assertThrows(argument, () -> kv.append(0, 1, infinite, one));
      assertThrows(
          WaveInferException.State.class, () -> kv.attend(0, 1, one, one.duplicate(), null, null));
      assertThrows(argument, () -> Sample.runtime.newKvStore(new KvParams(0, 1, 1, 1)));
    }
  }
}
