// What a client may ask for: the part of the Language Server Protocol that completions need.
//   initialize, initialized, shutdown, exit, $/cancelRequest
//   textDocument/didOpen, didChange (whole or in ranges), didClose, completion
//   editor/settled   answered when nothing is left to be done; messages behind it wait so long. For recordings: its
//                    result counts the tokens that each open file's session was given to read, the completions' not
// A completion that is overtaken, by an edit of its file or the next completion in it, is answered with ContentModified.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "messages.h"
#include "open_file.h"
#include "text.h"

namespace editor {

class Server {
 public:
  // model and options must outlive it.
  Server(const sample::Model& model, const OpenFile::Options& options) : model_(model), options_(options) {}

  void handle(const Json& message);
  void reject(const Json& id, const RpcError& error);  // answers with an error
  bool takes_messages() const { return !settling_ && !exited_; }

  void advance();                        // whatever is ready
  std::vector<int> descriptors() const;  // to wait on
  bool exited() const { return exited_; }
  bool was_shut_down() const { return state_ == State::kShutDown; }

 private:
  enum class State { kNew, kRunning, kShutDown };
  struct Entry {
    OpenFile file;
    std::optional<Json> completion;  // the request that waits for one
    Position position;               // of its cursor
  };

  Json answer(const std::string& method, const Json& params);
  void take(const std::string& method, const Json& params);
  void complete(const Json& id, const Json& params);
  void open(const Json& params);
  void change(const Json& params);
  void close(const Json& params);
  void cancel(const Json& params);
  void shut_down();
  void tell(Entry* entry, const Completion& done);
  void end_completion(Entry* entry, ErrorCode code, const char* why);
  Entry& entry_of(const Json& params);
  bool idle() const;

  const sample::Model& model_;
  const OpenFile::Options& options_;
  State state_ = State::kNew;
  bool exited_ = false;
  std::map<std::string, Entry> files_;  // by URI
  std::optional<Json> settling_;        // the request
};

}  // namespace editor
