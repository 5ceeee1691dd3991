# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require "fila/active_job"
require "fila/testing"

# Real jobs of ActiveJob through a real broker.
RSpec.describe Fila::ActiveJob do
  before(:context) do
    @broker = Fila::Testing.broker
    ActiveJob::Base.logger = Logger.new(IO::NULL)
  end

  after(:context) { @broker.stop }

  let(:client) { @broker.client(timeout: 20).tap { |made| clients << made } }
  let(:queue) { "jobs-#{SecureRandom.hex(4)}" }
  let(:performed) { Thread::Queue.new }
  let(:adapter) { ActiveJob::QueueAdapters::FilaAdapter.new { client } }

  # A class of jobs, on a queue of its own.
  def job_class(**settings, &body)
    client.create_queue(queue, **settings)
    name = queue
    seen = performed
    adapter = self.adapter
    stub_const("SomeJob", Class.new(ActiveJob::Base) do
      include Fila::ActiveJob::Options
      self.queue_adapter = adapter
      queue_as name
      define_method(:perform) { |*given| seen << given }
      class_eval(&body) if body
    end)
  end

  # Has jobs performed until the block says that it is done.
  def working(**options)
    worker = described_class.worker(client, queue, grace: 5, **options)
    thread = in_thread { worker.run(signals: false) }
    eventually { yield || !thread.alive? }
    worker.stop
    thread.value
  end

  def peeked(from = queue)
    client.peek(from).messages.map(&:message)
  end

  it "performs a job with its arguments, and acks it" do
    job = job_class.perform_later("a", 1, key: Time.at(0).utc)
    expect(job.provider_job_id).to eq peeked.first.id
    working { performed.size == 1 }
    expect(performed.pop).to eq ["a", 1, { key: Time.at(0).utc }]
    expect(client.stats(queue)).to have_attributes(depth: 0, in_flight: 0)
  end

  it "tells a job the id of its message" do
    seen = performed
    job = job_class { define_method(:perform) { seen << provider_job_id } }.perform_later
    working { performed.size == 1 }
    expect(performed.pop).to eq job.provider_job_id
  end

  it "performs a job later, in the queue that it names" do
    kind = job_class
    other = "#{queue}-other"
    client.create_queue(other)
    kind.set(queue: other, wait: 3600).perform_later("later")
    kind.set(wait_until: Time.now - 1).perform_later("now")
    expect(client.stats(other)).to have_attributes(delayed: 1)
    expect(client.peek(other, state: :delayed).messages.length).to eq 1
    working { performed.size == 1 }
    expect(performed.pop).to eq ["now"]
  end

  it "says by a job's options what its messages are" do
    kind = job_class do
      fila fairness_key: -> { arguments.first }, weight: 3, headers: { "team" => "blue" }
      fila throttle_keys: ["mail"]
    end
    kind.perform_later("acme")
    expect(peeked.first).to have_attributes(fairness_key: "acme", weight: 3,
                                            throttle_keys: ["mail"], headers: { "team" => "blue" })
    expect { kind.fila(colour: 1) }.to raise_error(ArgumentError, /"colour" is no option of a job/)
    expect(Class.new(ActiveJob::Base) { include Fila::ActiveJob::Options }.fila_options).to eq({})
  end

  it "leaves what a job rescues to the job: it is enqueued again, and no attempt is counted" do
    seen = performed
    kind = job_class do
      retry_on(KeyError, wait: 0, attempts: 3) { |job, _| seen << [:gave_up, job.executions] }
      define_method(:perform) do
        seen << [:performed, executions]
        raise KeyError, "no"
      end
    end
    kind.perform_later
    working { performed.size == 4 }
    expect(Array.new(4) { performed.pop })
      .to eq [[:performed, 1], [:performed, 2], [:performed, 3], [:gave_up, 3]]
    expect(client.stats(queue).counters).to have_attributes(nacked: 0, acked: 3)
    expect(peeked("#{queue}.dlq")).to eq []
  end

  it "leaves what no job rescues to the broker: retries, then a dead letter" do
    seen = performed
    kind = job_class(max_attempts: 2) do
      define_method(:perform) do |*given|
        seen << given
        raise KeyError, "no such customer"
      end
    end
    kind.perform_later("a")
    working { peeked("#{queue}.dlq").any? }
    expect(performed.size).to eq 2
    expect(peeked("#{queue}.dlq").first.last_error).to eq "KeyError: no such customer"
  end

  it "makes a dead letter of what is no job" do
    job_class
    ["no JSON", "[]", "{}", "\xFF"].each { |payload| client.enqueue(queue, payload) }
    working { peeked("#{queue}.dlq").length == 4 }
    expect(peeked("#{queue}.dlq").map(&:last_error))
      .to include(/is not JSON/, "the payload is no job", /is not UTF-8/)
  end

  it "performs jobs one by one" do
    expect { described_class.worker(client, queue, batch_size: 2) }
      .to raise_error(ArgumentError, "a worker of jobs has no batch_size")
  end

  it "stores the same execution of a job once" do
    job = job_class.perform_later
    first = job.provider_job_id
    job.enqueue
    expect(job.provider_job_id).to eq first
    expect(peeked.length).to eq 1
  end

  it "is found by its name, and makes its client from the environment" do
    stub_const("ENV", ENV.to_h.merge("FILA_ADDR" => @broker.address))
    kind = job_class { self.queue_adapter = :fila }
    kind.perform_later("a")
    expect(peeked.length).to eq 1
    clients << kind.queue_adapter.instance_variable_get(:@client)
  end

  it "makes its client in the process that enqueues, not in the one that forks it" do
    client.create_queue(queue)
    program = <<~RUBY
      require "fila/active_job"
      ActiveJob::Base.logger = nil
      ActiveJob::Base.queue_adapter = :fila
      class SomeJob < ActiveJob::Base
        queue_as "#{queue}"
      end
      children = %w[one two].map do |name|
        fork do
          SomeJob.perform_later(name)
          exit
        end
      end
      exit(children.all? { |pid| Process.wait2(pid).last.success? })
    RUBY
    lib = File.join(__dir__, "../lib")
    environment = { "FILA_ADDR" => @broker.address }
    expect(system(environment, RbConfig.ruby, "-I", lib, "-e", program)).to be true
    expect(peeked.map { |message| message.json["arguments"] }).to contain_exactly(["one"], ["two"])
  end
end
