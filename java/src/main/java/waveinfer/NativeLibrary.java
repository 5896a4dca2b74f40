package waveinfer;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Finds libwaveinfer_jni.so and the libwaveinfer.so.2 beside it: in the folder that the property
 * waveinfer.library.path names, or among this class's resources, which are copied to a temporary
 * folder for as long as loading takes.
 */
final class NativeLibrary {
  private static final String JNI = "libwaveinfer_jni.so";
  private static final String LIBRARY = "libwaveinfer.so.2";

  private NativeLibrary() {}

  static void load() {
    String folder = System.getProperty("waveinfer.library.path");
    if (folder != null) {
      System.load(Path.of(folder, JNI).toAbsolutePath().toString());
      return;
    }
    try {
      Path copies = Files.createTempDirectory("waveinfer-");
      Path library = copies.resolve(LIBRARY);
      Path jni = copies.resolve(JNI);
      try {
        copy(LIBRARY, library);
        copy(JNI, jni);
        System.load(jni.toString());
      } finally {
        Files.deleteIfExists(jni); // what is loaded stays
        Files.deleteIfExists(library);
        Files.deleteIfExists(copies);
      }
    } catch (IOException e) {
      throw (UnsatisfiedLinkError)
          new UnsatisfiedLinkError("cannot unpack " + LIBRARY + ": " + e).initCause(e);
    }
  }

  private static void copy(String name, Path to) throws IOException {
    String resource = "native/linux-" + System.getProperty("os.arch") + "/" + name;
    try (InputStream in = NativeLibrary.class.getResourceAsStream(resource)) {
      if (in == null) {
        throw new UnsatisfiedLinkError("this waveinfer has no " + resource);
      }
      Files.copy(in, to);
    }
  }
}
