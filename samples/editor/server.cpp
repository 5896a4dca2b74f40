#include "server.h"

#include <algorithm>

#include "text.h"

namespace editor {
namespace {

bool is_id(const Json& id) { return id.is_number_integer() || id.is_string(); }

// Everything read here came from a stranger: at() and get() throw, which becomes InvalidParams.
Position position_of(const Json& json) {
  const auto number = [&](const char* name) {
    const Json& value = json.at(name);
    if (!value.is_number_unsigned())
      throw RpcError(kInvalidParams, std::string(name) + " is no number from 0 on");
    return value.get<uint64_t>();
  };
  return {number("line"), number("character")};
}

std::string uri_of(const Json& params) { return params.at("textDocument").at("uri").get<std::string>(); }

void respond(const Json& id, const Json& result) {
  send({{"jsonrpc", "2.0"}, {"id", id}, {"result", result}});
}

}  // namespace

void Server::handle(const Json& message) {
  const bool is_object = message.is_object();
  const Json id = is_object && message.contains("id") ? message["id"] : Json();
  try {
    if (!is_object) throw RpcError(kInvalidRequest, "a message must be an object");
    if (!message.contains("method")) {
      if (message.contains("result") || message.contains("error"))
        return;  // to a question that was never asked
      throw RpcError(kInvalidRequest, "the message has no method");
    }
    if (!message["method"].is_string()) throw RpcError(kInvalidRequest, "the method is no string");
    const std::string method = message["method"];
    const Json params = message.value("params", Json::object());
    if (!message.contains("id")) return take(method, params);
    if (!is_id(id)) throw RpcError(kInvalidRequest, "the id is no whole number and no string");
    if (method == "textDocument/completion" && state_ == State::kRunning) return complete(id, params);
    if (method == "editor/settled" && state_ == State::kRunning) {
      settling_ = id;
      return;
    }
    respond(id, answer(method, params));
  } catch (const RpcError& error) {
    reject(id, error);
  } catch (const Json::exception&) {
    reject(id, {kInvalidParams, "params are not what the method takes"});
  } catch (const ClientGone&) {
    throw;
  } catch (const std::exception& error) {
    reject(id, {kInternalError, error.what()});
  }
}

void Server::reject(const Json& id, const RpcError& error) {
  send({{"jsonrpc", "2.0"},
        {"id", is_id(id) ? id : Json()},
        {"error", {{"code", static_cast<int>(error.code)}, {"message", error.what()}}}});
}

Json Server::answer(const std::string& method, const Json& params) {
  if (state_ == State::kShutDown) throw RpcError(kInvalidRequest, "the server is shut down");
  if (method == "initialize") {
    if (state_ != State::kNew) throw RpcError(kInvalidRequest, "initialize came before");
    if (!params.is_object()) throw RpcError(kInvalidParams, "params are no object");
    state_ = State::kRunning;
    return {{"capabilities",
             {{"positionEncoding", "utf-16"},
              {"textDocumentSync", {{"openClose", true}, {"change", 2}}},
              {"completionProvider", Json::object()}}},
            {"serverInfo", {{"name", "waveinfer editor sample"}}}};
  }
  if (state_ == State::kNew) throw RpcError(kServerNotInitialized, "initialize has to come first");
  if (method == "shutdown") return shut_down(), nullptr;
  throw RpcError(kMethodNotFound, "there is no method " + method.substr(0, 100));
}

// A notification has no answer, whatever is wrong with it; the client is told in its log.
void Server::take(const std::string& method, const Json& params) {
  if (method == "exit") {
    exited_ = true;
    return;
  }
  if (state_ != State::kRunning) return;
  std::string wrong;
  try {
    if (method == "textDocument/didOpen") open(params);
    if (method == "textDocument/didChange") change(params);
    if (method == "textDocument/didClose") close(params);
    if (method == "$/cancelRequest") cancel(params);
    return;
  } catch (const Json::exception&) {
    wrong = "params are not what the method takes";
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  send({{"jsonrpc", "2.0"},
        {"method", "window/logMessage"},
        {"params", {{"type", 1}, {"message", method + ": " + wrong}}}});
}

void Server::open(const Json& params) {
  const std::string uri = uri_of(params);
  std::string text = params.at("textDocument").at("text").get<std::string>();
  if (files_.count(uri)) throw RpcError(kInvalidParams, "the file is open already");
  files_.emplace(uri, Entry{OpenFile(model_, options_, std::move(text)), std::nullopt, {}});
}

void Server::change(const Json& params) {
  Entry& entry = entry_of(params);
  std::string text = entry.file.text();
  for (const Json& change : params.at("contentChanges")) {
    const std::string by = change.at("text").get<std::string>();
    if (!change.contains("range")) {
      text = by;
      continue;
    }
    const Json& range = change["range"];
    text = replaced(text, position_of(range.at("start")), position_of(range.at("end")), by);
  }
  entry.file.change(std::move(text));
  end_completion(&entry, kContentModified, "the file was edited");
}

void Server::close(const Json& params) {
  Entry& entry = entry_of(params);
  end_completion(&entry, kContentModified, "the file was closed");
  files_.erase(uri_of(params));
}

void Server::complete(const Json& id, const Json& params) {
  Entry& entry = entry_of(params);
  const Position position = position_of(params.at("position"));
  const size_t cursor = offset_of(entry.file.text(), position);
  end_completion(&entry, kContentModified, "another completion was asked for");
  entry.file.want(cursor);
  entry.completion = id;
  entry.position = position;
}

void Server::cancel(const Json& params) {
  const Json& id = params.at("id");
  for (auto& [uri, entry] : files_)
    if (entry.completion == id) end_completion(&entry, kRequestCancelled, "cancelled");
}

void Server::shut_down() {
  for (auto& [uri, entry] : files_) end_completion(&entry, kRequestCancelled, "the server is shut down");
  files_.clear();
  state_ = State::kShutDown;
}

void Server::end_completion(Entry* entry, ErrorCode code, const char* why) {
  if (!entry->completion) return;
  entry->file.forget();
  const Json id = *std::exchange(entry->completion, std::nullopt);
  reject(id, {code, why});
}

Server::Entry& Server::entry_of(const Json& params) {
  const auto at = files_.find(uri_of(params));
  if (at == files_.end()) throw RpcError(kInvalidParams, "the file is not open");
  return at->second;
}

void Server::advance() {
  for (auto& [uri, entry] : files_) {
    try {
      while (const std::optional<Completion> done = entry.file.advance()) tell(&entry, *done);
    } catch (const ClientGone&) {
      throw;
    } catch (const std::exception& error) {
      end_completion(&entry, kInternalError, error.what());
    }
  }
  if (!settling_ || !idle()) return;
  Json read = Json::object();
  for (const auto& [uri, entry] : files_) read[uri] = entry.file.file_tokens_read();
  respond(*std::exchange(settling_, std::nullopt), {{"fileTokensRead", read}});
}

void Server::tell(Entry* entry, const Completion& done) {
  if (!done.failure.empty()) return end_completion(entry, kInternalError, done.failure.c_str());
  Json items = Json::array();
  // What is between the ends of the range is what an editor compares with the label: nothing, for the text goes on from
  // the cursor. Without a range it would be the word before it, which no label begins with.
  const Json cursor = {{"line", entry->position.line}, {"character", entry->position.character}};
  if (!done.text.empty())
    items.push_back({{"label", done.text},
                     {"textEdit", {{"range", {{"start", cursor}, {"end", cursor}}}, {"newText", done.text}}},
                     {"data", {{"keptTokens", done.kept_tokens}, {"readTokens", done.read_tokens}}}});
  const Json id = *std::exchange(entry->completion, std::nullopt);
  respond(id, {{"isIncomplete", true}, {"items", items}});
}

bool Server::idle() const {
  return std::none_of(files_.begin(), files_.end(),
                      [](const auto& at) { return at.second.file.busy() || at.second.completion; });
}

std::vector<int> Server::descriptors() const {
  std::vector<int> descriptors;
  for (const auto& [uri, entry] : files_)
    if (entry.file.busy()) descriptors.push_back(entry.file.descriptor());
  return descriptors;
}

}  // namespace editor
