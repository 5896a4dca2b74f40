package waveinfer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.AbstractList;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;

class ModelTest {
  /** As one that another thread adds to: it has more messages after it was asked a few times. */
  private static final class Growing extends AbstractList<ChatMessage> {
    private int asked;

    @Override
    public ChatMessage get(int index) {
      return ChatMessage.user("Hi");
    }

    @Override
    public int size() {
      return asked++ < 2 ? 1 : 2000;
    }
  }

  @Test
  void aConversationThatGrowsIsWhatItWasWhenItWasLookedAt() {
    List<ChatMessage> one = List.of(ChatMessage.user("Hi"));
    ChatParams params = new ChatParams();
    String text = Sample.model.chatRender(one, params);
    assertTrue(Sample.model.chatRender(new Growing(), params).startsWith(text));
    int[] ids = Sample.model.chatTokens(one, params);
    int[] more = Sample.model.chatTokens(new Growing(), params);
    assertArrayEquals(ids, Arrays.copyOf(more, ids.length));
  }

  @Test
  void textComesBackExactly() {
    String text = "na\u00efve \u2014 \u6f22\u5b57 \ud83c\udf0a\t\r\n  <|end|> NUL\0inside\0";
    int[] tokens = Sample.model.tokenize(text);
    assertEquals(text, Sample.model.detokenize(tokens));
    assertEquals(0, Sample.model.tokenize("").length);
    assertEquals("", Sample.model.detokenize());
  }

  @Test
  void anyBytesComeBackExactly() {
    Random random = Sample.random();
    for (int i = 0; i < 200; i++) {
      byte[] bytes = new byte[random.nextInt(100)];
      random.nextBytes(bytes);
      int[] tokens = Sample.model.tokenize(bytes);
      assertArrayEquals(bytes, Sample.model.detokenize(tokens, true));
    }
  }

  @Test
  void flagsSayHowTextBecomesTokens() {
    Model model = Sample.model;
    int[] special = model.tokenize("<|user|>", TokenizeFlag.ADD_BOS, TokenizeFlag.PARSE_SPECIAL);
    assertArrayEquals(new int[] {0, 2}, special);
    assertTrue(model.tokenize("<|user|>").length > 1);
    assertEquals("", model.detokenize(special));
    byte[] names = model.detokenize(special, true);
    assertTrue(new String(names, StandardCharsets.UTF_8).endsWith("<|user|>"));
    assertThrows(WaveInferException.Argument.class, () -> model.detokenize(1 << 20));
  }

  @Test
  void tokensAreDescribed() {
    TokenInfo user = Sample.model.tokenInfo(2);
    assertEquals("<|user|>", user.text());
    assertTrue(user.flags().contains(TokenInfo.Flag.CONTROL));
    TokenInfo end = Sample.model.tokenInfo(Sample.model.info().eosToken());
    assertTrue(end.flags().contains(TokenInfo.Flag.END));
    TokenInfo word = Sample.model.tokenInfo(Sample.model.tokenize(" the")[0]);
    assertEquals(Set.of(), word.flags());
    assertEquals(" the", word.text());
    assertThrows(WaveInferException.Argument.class, () -> Sample.model.tokenInfo(-1));
  }

  @Test
  void metadataIsListedAndFound() {
    List<String> keys = Sample.model.metadataKeys();
    assertTrue(keys.contains("general.name"));
    for (String key : keys) assertTrue(Sample.model.metadata(key).isPresent(), key);
    assertEquals(Optional.of("Needle-3M"), Sample.model.metadata("general.name"));
    assertEquals(Optional.of("4"), Sample.model.metadata("llama.block_count"));
    assertEquals(Optional.empty(), Sample.model.metadata("no.such.key"));
    assertTrue(Sample.model.metadata("tokenizer.ggml.tokens").get().length() > 4096);
  }

  @Test
  void conversationsAreRendered() {
    List<ChatMessage> messages =
        List.of(
            ChatMessage.user("Hi <|end|>"), ChatMessage.assistant("Hello"), ChatMessage.user("x"));
    ChatParams params = new ChatParams().addGenerationPrompt(true);
    String text = Sample.model.chatRender(messages, params);
    assertTrue(text.contains("Hi <|end|>"), text);
    int[] tokens = Sample.model.chatTokens(messages, params);
    assertEquals(text, new String(Sample.model.detokenize(tokens, true), StandardCharsets.UTF_8));
    int end = Sample.model.tokenize("<|end|>", TokenizeFlag.PARSE_SPECIAL)[0];
    int whole = count(Sample.model.tokenize(text, TokenizeFlag.PARSE_SPECIAL), end);
    assertEquals(whole - 1, count(tokens, end)); // what the user wrote is text
    assertThrows(
        WaveInferException.Argument.class, () -> Sample.model.chatRender(List.of(), params));
    assertThrows(
        WaveInferException.Argument.class,
        () ->
            Sample.model.chatRender(
                List.of(new ChatMessage("user", "x", "{not json")), new ChatParams()));
  }

  @Test
  void bytesOfAMessageArePassedAsTheyAre() {
    byte[] bytes = {'a', (byte) 0xff, 0, (byte) 0xc3, 'b'};
    ChatMessage message = ChatMessage.user(bytes);
    int[] tokens = Sample.model.chatTokens(List.of(message), null);
    String latin = new String(Sample.model.detokenize(tokens, true), StandardCharsets.ISO_8859_1);
    assertTrue(latin.contains(new String(bytes, StandardCharsets.ISO_8859_1)), latin);
    bytes[0] = 'x'; // it was copied
    assertEquals("a\ufffd\0\ufffdb", message.content());
    assertEquals(ChatMessage.user("word"), ChatMessage.ofBytes("user", "word".getBytes(), null));
    assertEquals(null, ChatMessage.ofBytes("user", null, "{}").content());
  }

  private static int count(int[] tokens, int token) {
    return (int) java.util.Arrays.stream(tokens).filter(each -> each == token).count();
  }

  @Test
  void longConversationsAreRenderedWhole() {
    String word = "word ".repeat(20_000);
    String text = Sample.model.chatRender(List.of(ChatMessage.user(word)), new ChatParams());
    assertTrue(text.contains(word.strip()));
    int[] tokens = Sample.model.chatTokens(List.of(ChatMessage.user("\u6f22".repeat(5000))), null);
    assertTrue(tokens.length > 5000);
  }

  @Test
  void everyWayOfOpeningGivesTheSameModel() throws IOException {
    byte[] file = Sample.bytes();
    ByteBuffer direct = ByteBuffer.allocateDirect(file.length).put(file).flip();
    List<long[]> progress = new ArrayList<>();
    ModelParams watched =
        new ModelParams().progress((done, total) -> progress.add(new long[] {done, total}));
    try (Model mapped = Sample.runtime.open(Sample.FILE, watched, null);
        Model copied =
            Sample.runtime.open(
                Sample.FILE, new ModelParams().weights(ModelParams.Weights.COPIED), null);
        Model inPlace = Sample.runtime.open(direct, new ModelParams(), null);
        Model heap = Sample.runtime.open(ByteBuffer.wrap(file), new ModelParams(), null);
        Model read =
            Sample.runtime.open(
                Channels.newChannel(new ByteArrayInputStream(file)),
                file.length,
                new ModelParams(),
                null)) {
      List<Integer> expected = null;
      for (Model model : List.of(mapped, copied, inPlace, heap, read)) {
        try (Session session = model.newSession()) {
          session.append("In the beginning", TokenizeFlag.ADD_BOS);
          List<Integer> answer = Sample.answer(session, 10);
          if (expected == null) expected = answer;
          assertEquals(expected, answer);
        }
      }
    }
    assertFalse(progress.isEmpty());
    long[] last = progress.get(progress.size() - 1);
    assertEquals(last[1], last[0]);
  }

  @Test
  void brokenFilesAreRefused() {
    byte[] file = Sample.bytes();
    file[0] ^= 1;
    WaveRuntime runtime = Sample.runtime;
    assertThrows(
        WaveInferException.Format.class,
        () -> runtime.open(ByteBuffer.wrap(file), new ModelParams(), null));
    assertThrows(WaveInferException.Io.class, () -> runtime.open(Path.of("none.gguf")));
    assertThrows(
        IOException.class,
        () ->
            runtime.open(
                Channels.newChannel(new ByteArrayInputStream(Sample.bytes(), 0, 1000)),
                file.length,
                new ModelParams(),
                null));
  }

  @Test
  void memoryIsPlanned() {
    MemoryPlan plan = Sample.model.planMemory(null, 32_768);
    assertTrue(plan.fits());
    assertTrue(plan.kvBytes() >= 32_768 * Sample.model.info().kvBytesPerToken());
    assertFalse(Sample.model.planMemory(new SessionParams().kvBudgetBytes(1000), 32_768).fits());
  }

  @Test
  void runtimesSayWhatTheyAre() {
    DeviceInfo device = Sample.runtime.deviceInfo();
    assertEquals("cpu", device.name());
    List<DeviceInfo> devices = WaveRuntime.devices();
    assertEquals("cpu", devices.get(0).name());
    assertTrue(devices.get(0).usable());
    assertTrue(devices.size() > 1);
    assertEquals(devices.get(1).usable(), devices.get(1).reason().isEmpty());
    assertEquals(2, device.threads());
    List<String> policies = Sample.runtime.policies().stream().map(PolicyInfo::name).toList();
    assertTrue(policies.containsAll(List.of("wave", "full")));
    assertEquals(device.policies(), policies.size());
    assertTrue(Sample.runtime.stats().kvBudgetBytes() > 0);
    assertTrue(WaveRuntime.libraryVersion().matches("\\d+\\.\\d+\\.\\d+"));
    assertThrows(
        WaveInferException.Unsupported.class,
        () -> WaveRuntime.create(new RuntimeParams().device("abacus")));
  }
}
