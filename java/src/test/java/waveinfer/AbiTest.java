package waveinfer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.URISyntaxException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** What Java believes of the ABI against the file that the header was written to. */
class AbiTest {
  private final List<String[]> manifest = lines("tests/abi/waveinfer-2.abi.txt");
  private final Map<String, Method> natives = new HashMap<>();

  AbiTest() {
    for (Method method : NativeJNI.class.getDeclaredMethods()) {
      method.setAccessible(true);
      natives.put(method.getName(), method);
    }
  }

  private static List<String[]> lines(String path) {
    try (Stream<String> lines = Files.lines(Sample.CHECKOUT.resolve(path))) {
      return lines.filter(line -> !line.startsWith("#")).map(line -> line.split(" ")).toList();
    } catch (java.io.IOException e) {
      throw new java.io.UncheckedIOException(e);
    }
  }

  private List<String[]> manifest(String kind) {
    return manifest.stream().filter(line -> line[0].equals(kind)).toList();
  }

  private Object call(String name, Object... arguments) throws ReflectiveOperationException {
    assertTrue(natives.containsKey(name), name + " is not in the hidden layer");
    return natives.get(name).invoke(null, arguments);
  }

  @Test
  void everySymbolIsBound() {
    for (String[] line : manifest("symbol")) {
      assertTrue(natives.containsKey(line[1]), line[1] + " is not bound");
    }
  }

  private static List<String> sources() throws java.io.IOException {
    List<String> sources = new ArrayList<>();
    try (Stream<Path> files = Files.list(Sample.CHECKOUT.resolve("java/src/main/java/waveinfer"))) {
      for (Path file : files.toList()) sources.add(Files.readString(file));
    }
    return sources;
  }

  /** A cancel token needs no second owner. */
  @Test
  void everySymbolIsReachable() throws java.io.IOException {
    Set<String> inner = Set.of("wi_cancel_retain");
    String sources = String.join("", sources());
    for (String[] line : manifest("symbol")) {
      boolean used = sources.matches("(?s).*Native(\\.|::)" + line[1] + "\\b.*");
      assertTrue(used || inner.contains(line[1]), line[1] + " is not reachable");
    }
  }

  /** Some source that names the struct gets or sets its field. */
  @Test
  void everyFieldIsReachable() throws java.io.IOException {
    // The status is the code, and what is made of a struct has its size.
    Set<String> inner = Set.of("wi_error.code");
    List<String> missing = new ArrayList<>();
    List<String> sources = sources();
    for (String[] line : manifest("field")) {
      String[] name = line[1].split("\\.");
      if (name[1].equals("struct_size") || name[1].startsWith("reserved")) continue;
      String as = name[1].substring(0, 1).toUpperCase(Locale.ROOT) + name[1].substring(1);
      Pattern struct = Pattern.compile("\\b" + name[0] + "\\b");
      Pattern field = Pattern.compile("\\b[gs]et" + as + "\\b");
      boolean used =
          sources.stream().anyMatch(of -> struct.matcher(of).find() && field.matcher(of).find());
      if (!used && !inner.contains(line[1])) missing.add(line[1]);
    }
    assertEquals(List.of(), missing);
  }

  @Test
  void everyStructHasItsSize() throws ReflectiveOperationException {
    for (String[] line : manifest("struct")) {
      assertEquals(Long.parseLong(line[3]), call(line[1] + "_struct_bytes"), line[1]);
    }
  }

  @Test
  void everyFieldLiesInItsPlace() throws ReflectiveOperationException {
    Random random = Sample.random();
    for (String[] line : manifest("field")) {
      String[] name = line[1].split("\\.");
      int offset = Integer.parseInt(line[3]);
      int size = Integer.parseInt(line[5]);
      long bytes = (long) call(name[0] + "_struct_bytes");
      long address = Native.allocate(bytes);
      ByteBuffer memory = Native.buffer(address, bytes).order(ByteOrder.nativeOrder());
      for (int i = 0; i < bytes; i++) memory.put(i, (byte) (1 + random.nextInt(255)));
      Method get = natives.get(name[0] + "_" + name[1] + "_get");
      assertTrue(get != null, line[1] + " is not in the hidden layer");
      Class<?> type = get.getReturnType();
      if (type == byte[].class) memory.put(offset + size - 1, (byte) 0);
      Object is = get.invoke(null, address);
      if (type == byte[].class) {
        byte[] text = new byte[size - 1];
        memory.get(offset, text);
        assertArrayEquals(text, (byte[]) is, line[1]);
      } else if (type == int.class) {
        assertEquals(4, size, line[1]);
        assertEquals(memory.getInt(offset), is, line[1]);
      } else if (type == long.class) {
        assertEquals(8, size, line[1]);
        assertEquals(memory.getLong(offset), is, line[1]);
      } else if (type == float.class) {
        assertEquals(4, size, line[1]);
        assertEquals(memory.getFloat(offset), is, line[1]);
      } else {
        assertEquals(double.class, type, line[1]);
        assertEquals(8, size, line[1]);
        assertEquals(memory.getDouble(offset), is, line[1]);
      }
      Native.release(address);
    }
  }

  @Test
  void everyFieldOfJavaIsInTheManifest() {
    Set<String> fields = new TreeSet<>();
    for (String[] line : manifest("field")) fields.add(line[1].replace('.', '_') + "_get");
    for (String method : natives.keySet()) {
      if (method.startsWith("wi_") && method.endsWith("_get"))
        assertTrue(fields.contains(method), method);
    }
  }

  private static Map<String, Integer> constants() throws ReflectiveOperationException {
    Map<String, Integer> constants = new TreeMap<>();
    for (Class<?> type : generated()) {
      for (Field field : type.getDeclaredFields()) {
        if (!field.getName().startsWith("WI_")) continue;
        field.setAccessible(true);
        constants.put(field.getName(), field.getInt(null));
      }
    }
    return constants;
  }

  private static List<Class<?>> generated() throws ReflectiveOperationException {
    List<Class<?>> classes = new ArrayList<>();
    try (Stream<Path> files =
        Files.list(
            Path.of(NativeJNI.class.getProtectionDomain().getCodeSource().getLocation().toURI())
                .resolve("waveinfer"))) {
      for (Path file : files.toList()) {
        String name = file.getFileName().toString();
        if (!name.startsWith("wi_") || !name.endsWith(".class")) continue;
        classes.add(Class.forName("waveinfer." + name.substring(0, name.length() - 6)));
      }
    } catch (java.io.IOException | URISyntaxException e) {
      throw new IllegalStateException(e);
    }
    return classes;
  }

  @Test
  void everyValueIsTheManifests() throws ReflectiveOperationException {
    Map<String, Integer> expected = new TreeMap<>();
    for (String[] line : manifest("value")) expected.put(line[1], Integer.parseInt(line[2]));
    assertEquals(expected.remove("WI_ABI_VERSION"), Native.header_abi_version());
    assertEquals(expected, constants());
  }

  @Test
  void everyValueHasANameInJava() throws ReflectiveOperationException {
    Map<Class<?>, Class<?>> enums =
        Map.ofEntries(
            Map.entry(wi_status_code.class, Status.class),
            Map.entry(wi_log_level.class, LogLevel.class),
            Map.entry(wi_huge_pages.class, RuntimeParams.HugePages.class),
            Map.entry(wi_bind_threads.class, RuntimeParams.BindThreads.class),
            Map.entry(wi_buffer_manager.class, RuntimeParams.BufferManager.class),
            Map.entry(wi_precision.class, ModelParams.Precision.class),
            Map.entry(wi_weights.class, ModelParams.Weights.class),
            Map.entry(wi_token_flag.class, TokenInfo.Flag.class),
            Map.entry(wi_tokenize_flag.class, TokenizeFlag.class),
            Map.entry(wi_kv_type.class, KvType.class),
            Map.entry(wi_prefix_reuse.class, SessionParams.PrefixReuse.class),
            Map.entry(wi_event_kind.class, Event.Kind.class),
            Map.entry(wi_task_state.class, TaskInfo.State.class));
    Set<Class<?>> flags = Set.of(wi_chat_flag.class, wi_detokenize_flag.class); // booleans
    for (Class<?> type : generated()) {
      Field[] values = type.getDeclaredFields();
      if (Arrays.stream(values).noneMatch(field -> field.getName().startsWith("WI_"))) continue;
      if (flags.contains(type)) {
        assertEquals(1, values.length, type.getName());
        continue;
      }
      assertTrue(enums.containsKey(type), type + " has no enum");
      Set<Integer> known = new TreeSet<>();
      for (Object constant : enums.get(type).getEnumConstants()) {
        Field value =
            enums.get(type).getDeclaredField(type == wi_status_code.class ? "code" : "value");
        value.setAccessible(true);
        known.add(value.getInt(constant));
      }
      for (Field field : values) {
        field.setAccessible(true);
        assertTrue(known.contains(field.getInt(null)), field.getName() + " has no name in Java");
      }
    }
  }

  @Test
  void statusesHaveTheLibrarysNames() {
    for (Status status : Status.values()) {
      assertEquals(status.name(), Status.nameOf(status.code()));
    }
    assertEquals("UNKNOWN", Status.nameOf(1000));
  }

  @Test
  void theLibrarysAbiIsTheHeaders() {
    assertEquals(Native.header_abi_version(), WaveRuntime.abiVersion());
  }

  @Test
  void everyStatusIsAnExceptionOfItsOwn() {
    Set<Class<?>> classes = new java.util.HashSet<>();
    for (Status status : Status.values()) {
      if (status == Status.OK) continue;
      WaveInferException e = WaveInferException.of(status.code(), 7, "why");
      assertEquals(status, e.status());
      assertEquals(7, e.nativeCode());
      assertTrue(e.getMessage().startsWith("why"));
      assertTrue(classes.add(e.getClass()), status.name());
    }
  }
}
