import java.nio.file.Path;
import waveinfer.Model;
import waveinfer.RuntimeParams;
import waveinfer.Session;
import waveinfer.TokenizeFlag;
import waveinfer.WaveRuntime;

/** As decode_overhead.c, through this binding. */
public class DecodeOverhead {
  private static final int ROUNDS = 2000; // the first ones compile
  private static final int STEPS = 20;
  private static final int FORKS = 20;

  public static void main(String[] args) {
    double step = Double.MAX_VALUE;
    double call = Double.MAX_VALUE;
    try (WaveRuntime runtime = WaveRuntime.create(new RuntimeParams().threads(1));
        Model model = runtime.open(Path.of(args[0]));
        Session session = model.newSession()) {
      session.append("In the beginning", TokenizeFlag.ADD_BOS);
      Session[] forks = new Session[FORKS];
      for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < FORKS; i++) forks[i] = session.fork();
        StringBuilder text = new StringBuilder();
        long begun = System.nanoTime();
        for (int i = 0; i < FORKS; i++) text.append(forks[i].decode().text());
        call = Math.min(call, (System.nanoTime() - begun) / (double) FORKS);

        begun = System.nanoTime();
        for (int i = 0; i < STEPS; i++) text.append(forks[0].decode().text());
        step = Math.min(step, (System.nanoTime() - begun) / (double) STEPS);
        for (int i = 0; i < FORKS; i++) forks[i].close();
      }
    }
    System.out.printf("%.0f %.0f%n", step, call);
  }
}
