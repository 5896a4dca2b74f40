package waveinfer;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Function;
import java.util.stream.Collectors;

/**
 * As decode_overhead.c, through this binding. In its package for what FfmDecode compares it with.
 */
public class DecodeOverhead {
  private static final int STEPS = 20;
  private static final int FORKS = 20;

  public static void main(String[] args) {
    measure(Path.of(args[0]), Integer.parseInt(args[1]), List.of(Session::decode));
  }

  /**
   * A line for each way to decode: the medians of a step and of a call, how much more than the
   * first way's they are, and the tokens. The ways take turns within a round, so that what else the
   * machine does meets all of them.
   */
  static void measure(Path file, int rounds, List<Function<Session, Event>> ways) {
    double[][] steps = new double[ways.size()][rounds];
    double[][] calls = new double[ways.size()][rounds];
    List<Event> expected = null;
    try (WaveRuntime runtime = WaveRuntime.create(new RuntimeParams().threads(1));
        Model model = runtime.open(file);
        Session session = model.newSession()) {
      session.append("In the beginning", TokenizeFlag.ADD_BOS);
      for (int round = -rounds; round < rounds; round++) { // those before 0 compile
        for (int turn = 0; turn < ways.size(); turn++) {
          int way = Math.floorMod(turn + round, ways.size());
          Function<Session, Event> decode = ways.get(way);
          List<Session> forks = new ArrayList<>();
          for (int i = 0; i < FORKS; i++) forks.add(session.fork());
          List<Event> events = new ArrayList<>(FORKS + STEPS);
          long begun = System.nanoTime();
          for (int i = 0; i < FORKS; i++) events.add(decode.apply(forks.get(i)));
          long called = System.nanoTime();
          for (int i = 0; i < STEPS; i++) events.add(decode.apply(forks.get(0)));
          long ended = System.nanoTime();
          forks.forEach(Session::close);

          if (expected == null) expected = events;
          if (!expected.equals(events)) throw new AssertionError(expected + " but " + events);
          if (round < 0) continue;
          calls[way][round] = (called - begun) / (double) FORKS;
          steps[way][round] = (ended - called) / (double) STEPS;
        }
      }
    }
    String tokens =
        expected.stream().skip(FORKS).map(e -> "" + e.token()).collect(Collectors.joining(","));
    for (int way = 0; way < ways.size(); way++) {
      System.out.printf(
          "%.0f %.0f %.0f %.0f %s%n",
          median(steps[way]),
          median(calls[way]),
          median(less(steps[way], steps[0])),
          median(less(calls[way], calls[0])),
          tokens);
    }
  }

  private static double[] less(double[] from, double[] of) {
    double[] less = new double[from.length];
    Arrays.setAll(less, i -> from[i] - of[i]);
    return less;
  }

  private static double median(double[] of) {
    double[] sorted = of.clone();
    Arrays.sort(sorted);
    return sorted[sorted.length / 2];
  }
}
