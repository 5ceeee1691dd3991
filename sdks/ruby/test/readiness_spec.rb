# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Asking for the broker, and setting up what a program needs before it begins.
RSpec.describe Fila::Client do
  def status(status)
    Grpc::Health::V1::HealthCheckResponse.new(status:)
  end

  describe "ping" do
    it "says how long the answer took" do
      broker.script("Check") do
        sleep 0.05
        status(:SERVING)
      end
      expect(client.ping).to be_between(0.05, 20)
    end

    it "has a deadline like every call" do
      client.ping(timeout: 12)
      expect(broker.calls("Check").first.seconds_left).to be_between(5, 12.1)
    end

    it "is unavailable when the broker does not serve" do
      broker.script("Check") { status(:NOT_SERVING) }
      expect { client.ping }
        .to raise_error(Fila::UnavailableError, "the broker is not serving") { |error|
              expect(error.code).to eq "UNAVAILABLE"
            }
    end
  end

  describe "wait_ready" do
    it "waits for a broker that comes later" do
      port = free_port
      client = open_client("127.0.0.1:#{port}", backoff: Support::QUICK)
      waiting = in_thread { client.wait_ready }
      eventually("a waiting call") { waiting.status == "sleep" }
      start_broker(port:)
      expect(waiting.value).to be_nil
    end

    it "waits until it serves" do
      answers = %i[NOT_SERVING NOT_SERVING SERVING]
      broker.script("Check") { status(answers.shift) }
      open_client(backoff: Support::QUICK).wait_ready
      expect(broker.calls("Check").length).to eq 3
    end

    it "gives up with what it failed with last" do
      client = open_client("127.0.0.1:#{free_port}", backoff: Support::QUICK)
      expect { client.wait_ready(timeout: 0.3) }.to raise_error(
        Fila::DeadlineExceededError, /\Athe broker was not ready within 0.3 s: .*Connection refused/
      ) { |error| expect(error.cause).to be_a Fila::UnavailableError }
    end

    it "does not wait for what waiting would not cure" do
      broker.script("Check") { refuse(:UNAUTHENTICATED, "no", "UNAUTHENTICATED") }
      expect { client.wait_ready }.to raise_error(Fila::UnauthenticatedError)
    end
  end

  describe "ensure_queue" do
    def exists(**config)
      broker.script("CreateQueue") { refuse(:ALREADY_EXISTS, "there", "QUEUE_ALREADY_EXISTS") }
      broker.script("GetStats") do
        Fila::V1::GetStatsResponse.new(config: Fila::V1::QueueConfig.new(**config))
      end
    end

    it "creates the queue" do
      broker.script("CreateQueue") do |request|
        Fila::V1::CreateQueueResponse.new(dead_letter_queue: "#{request.name}.dlq")
      end
      expect(client.ensure_queue("orders", max_attempts: 3)).to eq "orders.dlq"
      expect(broker.seen.map { |call| call.request.config.max_attempts }).to eq [3]
    end

    it "is content with a queue that has these settings, whatever the others are" do
      exists(max_attempts: 3, quantum: 7)
      expect(client.ensure_queue("orders", max_attempts: 3)).to eq "orders.dlq"
      expect(client.ensure_queue("orders", on_hook_error: :default)).to eq "orders.dlq"
      expect(client.ensure_queue("orders")).to eq "orders.dlq"
      expect(broker.calls("GetStats").map { |call| call.request.max_keys }).to eq [1, 1, 1]
    end

    it "names each setting that is another, and changes nothing" do
      exists(max_attempts: 3, quantum: 7, on_failure_script: "x" * 200)
      wanted = { max_attempts: 5, quantum: 7, on_failure_script: "" }
      expect { client.ensure_queue("orders", **wanted) }
        .to raise_error(Fila::QueueAlreadyExistsError) { |error|
              expect(error.message).to match(
                /\Aqueue "orders" exists with other settings: max_attempts is 3, not 5; on_failure/
              )
              expect(error.message).to end_with '..., not ""; update_queue changes them'
              expect(error).to have_attributes(queue: "orders", reason: "QUEUE_ALREADY_EXISTS")
            }
      expect(broker.seen.map(&:name).uniq).to eq %w[CreateQueue GetStats]
    end

    it "creates a queue again that was deleted meanwhile, once" do
      exists
      broker.script("GetStats") do
        broker.script("CreateQueue") do
          Fila::V1::CreateQueueResponse.new(dead_letter_queue: "again.dlq")
        end
        refuse(:NOT_FOUND, "gone", "QUEUE_NOT_FOUND")
      end
      expect(client.ensure_queue("again")).to eq "again.dlq"
      exists
      broker.script("GetStats") { refuse(:NOT_FOUND, "gone", "QUEUE_NOT_FOUND") }
      expect { client.ensure_queue("again") }.to raise_error(Fila::QueueNotFoundError)
      expect(broker.calls("CreateQueue").length).to eq 4
    end

    it "names what is no setting, and sends nothing" do
      expect { client.ensure_queue("orders", colour: 1) }.to raise_error(ArgumentError, /"colour"/)
      expect(broker.seen).to eq []
    end
  end
end
