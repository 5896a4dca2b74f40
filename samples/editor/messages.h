// Messages over standard input and output: JSON behind a header with its Content-Length, as the Language Server
// Protocol has it. A client may send anything: what is no message is told, and what follows is read again.
#pragma once

#include <cstddef>
#include <deque>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace editor {

using Json = nlohmann::json;

// Of JSON-RPC and of the Language Server Protocol.
enum ErrorCode {
  kParseError = -32700,
  kInvalidRequest = -32600,
  kMethodNotFound = -32601,
  kInvalidParams = -32602,
  kInternalError = -32603,
  kServerNotInitialized = -32002,
  kRequestCancelled = -32800,
  kContentModified = -32801,
};

struct RpcError : std::runtime_error {
  RpcError(ErrorCode of, const std::string& message) : std::runtime_error(message), code(of) {}
  ErrorCode code;
};

// Nobody reads what is sent.
struct ClientGone : std::runtime_error {
  ClientGone() : std::runtime_error("the client does not read any more") {}
};

// Takes bytes as they come and gives messages as they are whole.
class Inbox {
 public:
  void feed(const char* bytes, size_t count);
  // The next message, parsed. False: it is not whole yet. Throws RpcError for what is no message; the next call goes
  // on behind it.
  bool next(Json* message);

 private:
  bool read_header_line();
  void end_header();

  std::string bytes_;
  size_t at_ = 0;              // the first that is not looked at yet
  bool in_header_ = true;      // else in the content
  bool in_long_line_ = false;  // of which nothing is kept
  std::string complaint_;      // about this header
  bool has_length_ = false;
  size_t length_ = 0;    // of the content
  size_t skipping_ = 0;  // bytes of a content that is not taken
};

// Throws ClientGone.
void send(const Json& message);

}  // namespace editor
