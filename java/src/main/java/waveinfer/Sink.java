package waveinfer;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;
import java.util.Objects;

/** A channel as what the library writes to. */
final class Sink implements AutoCloseable {
  private static final int PIECE = 1 << 20;

  private final WritableByteChannel channel;
  private final long id;
  private final ByteBuffer piece = ByteBuffer.allocate(PIECE); // the library's memory stays here

  private Sink(WritableByteChannel channel) {
    this.channel = channel;
    id = Callbacks.add(this);
  }

  /** The address of a wi_writer, which is the call's. */
  static long writer(Call call, WritableByteChannel channel) {
    wi_writer writer = call.own(new wi_writer());
    Sink sink = call.own(new Sink(Objects.requireNonNull(channel)));
    writer.setWrite(Native.callback(Callbacks.WRITE));
    writer.setUser(sink.id);
    return writer.address();
  }

  void write(ByteBuffer from) throws IOException {
    while (from.hasRemaining()) {
      int bytes = Math.min(PIECE, from.remaining());
      piece.clear().put(from.slice().limit(bytes));
      from.position(from.position() + bytes);
      piece.flip();
      while (piece.hasRemaining()) channel.write(piece);
    }
  }

  @Override
  public void close() {
    Callbacks.remove(id);
  }
}
