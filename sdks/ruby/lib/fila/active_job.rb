# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Jobs of Rails on Fila: `require "fila/active_job"`, which "fila" does not load.
#
# A job is a message whose payload is what ActiveJob serializes, as JSON, in the queue of the job's
# name. Retries have two owners, and each does what it knows: `retry_on` and `discard_on` are the
# job's, and ActiveJob carries them out by enqueueing the job again; an error that no job rescues
# goes to the broker, which retries as the queue's settings say and keeps what nobody could do as a
# dead letter. Neither sees the other's.

require "active_job"

require "fila"

module Fila
  # Options of jobs, and workers that perform them.
  module ActiveJob
    # What a job may say about its messages.
    OPTIONS = %i[fairness_key weight throttle_keys throttle_cost ttl_ms headers].freeze

    # Adds `fila` to a class of jobs.
    module Options
      def self.included(job_class)
        job_class.extend(ClassMethods)
        job_class.class_attribute(:fila_options, instance_accessor: false, default: {}.freeze)
      end

      # What the class of a job can say.
      module ClassMethods
        # Sets arguments of `Client#enqueue` for the messages of this job: #{OPTIONS}. A Proc is
        # called in the job when it is enqueued: `fila fairness_key: -> { arguments.first.to_s }`.
        def fila(**options)
          unknown = options.keys - OPTIONS
          if unknown.any?
            raise ArgumentError, "\"#{unknown.first}\" is no option of a job on Fila; they are " \
                                 "#{OPTIONS.join(", ")}"
          end
          self.fila_options = fila_options.merge(options).freeze
        end
      end
    end

    # The arguments for the message of a job.
    # @api private
    def self.options(job)
      return {} unless job.class.respond_to?(:fila_options)

      job.class.fila_options.transform_values do |value|
        value.is_a?(Proc) ? job.instance_exec(&value) : value
      end
    end

    # A Worker that performs the jobs of a queue; takes the keywords of `Client#worker`. What a job
    # raises is the handler's failure, so a job may raise Backpressure and DeadLetter, too. Jobs are
    # performed one by one: ArgumentError for a `batch_size`.
    def self.worker(client, queue, **options)
      raise ArgumentError, "a worker of jobs has no batch_size" if options.key?(:batch_size)

      client.worker(queue, **options) { |message| perform(message) }
    end

    # Performs the job of one message.
    # @api private
    def self.perform(message)
      job = begin
        message.json
      rescue EncodingError, JSON::ParserError => e
        raise DeadLetter, e.message
      end
      raise DeadLetter, "the payload is no job" unless job.is_a?(Hash) && job.key?("job_class")

      ::ActiveJob::Base.execute(job.merge("provider_job_id" => message.id))
    end
  end
end

module ActiveJob
  module QueueAdapters
    # Enqueues jobs on Fila: `queue_adapter = :fila`, or an object of this class with a client.
    #
    # The queues have to be there. A job's priority means nothing here: its fairness key and weight
    # do. Rails makes adapters before it forks, and gRPC does not survive a fork: so the client is
    # made by the first job.
    class FilaAdapter < (const_defined?(:AbstractAdapter) ? AbstractAdapter : Object)
      # The block makes a client. Without one it is of FILA_ADDR and FILA_API_KEY.
      def initialize(&connect)
        super()
        @connect = connect || lambda do
          Fila::Client.new(ENV.fetch("FILA_ADDR", Fila::Client::DEFAULT_TARGET),
                           api_key: ENV.fetch("FILA_API_KEY", nil))
        end
        @lock = Mutex.new
      end

      # Called by ActiveJob: stores the job, whose `provider_job_id` is then its message's id.
      def enqueue(job)
        store(job, nil)
      end

      # Called by ActiveJob: stores a job that is not to be performed before a time, in seconds
      # since 1970.
      def enqueue_at(job, timestamp)
        store(job, Time.at(timestamp))
      end

      private

      # An execution of a job enqueues it again once at most. So its number makes a key by which the
      # broker knows a second attempt to store it.
      def store(job, deliver_at)
        job.provider_job_id = client.enqueue(
          job.queue_name, json: job.serialize, deliver_at:,
                          idempotency_key: "#{job.job_id}/#{job.executions}",
                          **Fila::ActiveJob.options(job)
        )
      end

      def client
        @lock.synchronize { @client ||= @connect.call }
      end
    end
  end
end
