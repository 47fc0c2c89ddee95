// RRPAService by C++ gRPC's callback API, with tokens that are already in memory.
//
//   server unix:/path TOKENS_PER_S TOKEN_HEX
//
// One thread keeps the beat and gives each stream its next token; a stream whose last write is
// not over yet gets it when that is done, so each token is its own message and none is lost.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>

#include "rrpa/v1/rrpa.grpc.pb.h"

namespace {

using rrpa::v1::CreateStreamRequest;
using rrpa::v1::CreateStreamResponse;

class Stream;

// All streams that are open. A step holds the lock while it goes round, so none is deleted then.
std::mutex streams_lock;
std::unordered_set<Stream*> streams;

class Stream final : public grpc::ServerWriteReactor<CreateStreamResponse> {
 public:
  Stream(const std::string& token, int tokens) : token_(token), left_(tokens) {
    std::lock_guard<std::mutex> held(streams_lock);
    streams.insert(this);
  }

  void Step() {
    Go([this] { owed_++; });
  }

  void OnWriteDone(bool ok) override {
    Go([this, ok] {
      busy_ = false;
      gone_ = gone_ || !ok;
    });
  }

  void OnCancel() override {
    Go([this] { gone_ = true; });
  }

  // Called when no other call into this object is running or will come.
  void OnDone() override {
    {
      std::lock_guard<std::mutex> held(streams_lock);
      streams.erase(this);
    }
    delete this;
  }

 private:
  enum class Act { kNothing, kWrite, kFinish };

  // Notes what happened, then begins the next write if one is due and none is under way.
  template <typename What>
  void Go(What happened) {
    Act act;
    {
      std::lock_guard<std::mutex> held(lock_);
      happened();
      act = Next();
    }
    if (act == Act::kWrite) StartWrite(&message_);
    if (act == Act::kFinish) Finish(grpc::Status::OK);
  }

  // message_ belongs to whoever made busy_ true, until the write is over.
  Act Next() {
    if (busy_) return Act::kNothing;
    if (gone_ || said_all_) {
      busy_ = true;
      return Act::kFinish;
    }
    message_.set_offset(offset_);
    if (left_ == 0) {
      message_.mutable_finish()->set_reason(rrpa::v1::FINISH_REASON_LENGTH);
      said_all_ = true;
    } else if (owed_ > 0) {
      message_.set_data(token_);
      offset_ += token_.size();
      owed_--;
      left_--;
    } else {
      return Act::kNothing;
    }
    busy_ = true;
    return Act::kWrite;
  }

  const std::string& token_;
  std::mutex lock_;
  CreateStreamResponse message_;
  std::uint64_t offset_ = 0;
  int left_;      // tokens still to say
  int owed_ = 0;  // steps that have been and were not said yet
  bool busy_ = false;
  bool gone_ = false;
  bool said_all_ = false;
};

class Service final : public rrpa::v1::RRPAService::CallbackService {
 public:
  explicit Service(std::string token) : token_(std::move(token)) {}

  grpc::ServerWriteReactor<CreateStreamResponse>* CreateStream(
      grpc::CallbackServerContext*, const CreateStreamRequest* request) override {
    return new Stream(token_, request->max_tokens());
  }

 private:
  const std::string token_;
};

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (std::size_t at = 0; at + 1 < hex.size(); at += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16)));
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "expected: server ADDRESS TOKENS_PER_S TOKEN_HEX\n");
    return 2;
  }
  Service service(FromHex(argv[3]));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(argv[1], grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  if (!server) return 1;
  std::printf("ready, gRPC %s\n", grpc::Version().c_str());
  std::fflush(stdout);
  const auto period = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(1 / std::atof(argv[2])));
  for (auto due = std::chrono::steady_clock::now();; due += period) {
    std::this_thread::sleep_until(due);
    std::lock_guard<std::mutex> held(streams_lock);
    for (Stream* each : streams) each->Step();
  }
}
