package waveinfer;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;

/** The sample model, and what tests say of it. */
final class Sample {
  static final Path CHECKOUT = Path.of(System.getProperty("waveinfer.checkout", ".."));
  static final Path FILE = CHECKOUT.resolve("samples/model/needle-f16.gguf");

  static final WaveRuntime runtime = WaveRuntime.create(new RuntimeParams().threads(2));
  static final Model model = runtime.open(FILE);

  private Sample() {}

  static byte[] bytes() {
    try {
      return Files.readAllBytes(FILE);
    } catch (IOException e) {
      throw new java.io.UncheckedIOException(e);
    }
  }

  /** A session that has read a few words. */
  static Session session() {
    Session session = model.newSession();
    session.append("In the beginning", TokenizeFlag.ADD_BOS);
    return session;
  }

  static int[] tokens(int count) {
    int[] tokens = new int[count];
    Arrays.setAll(tokens, i -> 100 + i * 7 % 1000);
    return tokens;
  }

  static List<Integer> answer(Session session, int count) {
    return Stream.generate(session::decode).limit(count).map(Event::token).toList();
  }

  /** Random numbers whose seed is printed. */
  static Random random() {
    long seed = System.nanoTime();
    System.out.println("seed " + seed);
    return new Random(seed);
  }
}
