package waveinfer;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ReadableByteChannel;
import java.util.Objects;

/** A channel as what the library reads from: piece after piece, from its beginning to its end. */
final class Source implements AutoCloseable {
  private static final int PIECE = 1 << 20;

  private final ReadableByteChannel channel;
  private final long id;
  private final ByteBuffer piece = ByteBuffer.allocate(PIECE); // the library's memory stays here
  private long position;

  private Source(ReadableByteChannel channel) {
    this.channel = channel;
    id = Callbacks.add(this);
  }

  /** The address of a wi_reader, which is the call's. */
  static long reader(Call call, ReadableByteChannel channel, long bytes) {
    wi_reader reader = call.own(new wi_reader());
    Source source = call.own(new Source(Objects.requireNonNull(channel)));
    reader.setBytes(bytes);
    reader.setRead(Native.callback(Callbacks.READ));
    reader.setUser(source.id);
    return reader.address();
  }

  void read(long offset, ByteBuffer to) throws IOException {
    if (offset != position)
      throw new IOException("read at " + offset + " of a channel at " + position);
    while (to.hasRemaining()) {
      piece.clear().limit(Math.min(PIECE, to.remaining()));
      if (channel.read(piece) < 0) throw new EOFException("the channel ends at byte " + position);
      position += piece.position();
      to.put(piece.flip());
    }
  }

  @Override
  public void close() {
    Callbacks.remove(id);
  }
}
