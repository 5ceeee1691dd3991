// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.AckRequest;
import java.time.Duration;
import java.time.Instant;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/**
 * A connection to a broker. Every method names one call; building, sending, batching and reading
 * are the business of other classes.
 *
 * <p>Safe to share among threads: their concurrent calls travel in shared batches. It connects with
 * its first call. Methods block, and throw a {@link FilaException} of the kind that says what
 * happened; interrupting the thread gives a call up with {@link CancelledException} and leaves the
 * interrupt flag set. What ends in {@code Async} returns at once; its future fails with a {@link
 * FilaException} as the cause, and cancelling it gives the call up.
 *
 * <p>Null stands for what the caller leaves to the broker, where a method says so or takes options.
 */
public final class FilaClient implements AutoCloseable {
  private final Shared shared;
  private final Connection connection;
  private final Duration timeout;

  FilaClient(ClientOptions options) {
    this(new Shared(options), options.timeout());
  }

  private FilaClient(Shared shared, Duration timeout) {
    this.shared = shared;
    this.connection = shared.connection;
    this.timeout = timeout;
  }

  /** Begins a client; {@code FilaClient.builder().target("127.0.0.1:5555").build()}. */
  public static FilaClientBuilder builder() {
    return new FilaClientBuilder();
  }

  /** The version of this package. */
  public static String version() {
    return Channels.version();
  }

  /**
   * This client with another deadline for its requests. Both share everything, so closing one
   * closes the other. A time that is not positive has passed before anything is sent.
   */
  public FilaClient withTimeout(Duration timeout) {
    return new FilaClient(shared, timeout);
  }

  /** Asks whether the broker serves, and returns how long the answer took. No permission needed. */
  public Duration ping() throws FilaException {
    return Health.ping(connection, timeout);
  }

  /**
   * Waits until the broker answers and serves: for tests, and scripts that start beside it. Fails
   * with {@link DeadlineExceededException} that says what the last attempt failed with.
   */
  public void waitReady(Duration timeout) throws FilaException {
    Health.await(connection, timeout);
  }

  /** Like the other form, for 30 s. */
  public void waitReady() throws FilaException {
    waitReady(Duration.ofSeconds(30));
  }

  /**
   * Waits until every enqueue, ack, nack and extension that was begun before is answered, whatever
   * the answer. Fails with {@link DeadlineExceededException} if that takes longer.
   */
  public void flush(Duration timeout) throws FilaException {
    shared.flush(timeout);
  }

  /** Like the other form, with the client's timeout. */
  public void flush() throws FilaException {
    flush(timeout);
  }

  /**
   * Refuses new calls, ends consumers, waits for the answers of calls under way, as long as {@link
   * FilaClientBuilder#closeTimeout} says, and ends what is left. Harmless twice; an interrupt ends
   * the waiting. A worker is closed before its client.
   */
  @Override
  public void close() {
    shared.close();
  }

  @Override
  public String toString() {
    return "FilaClient(" + connection.options().target() + ")";
  }

  Shared shared() {
    return shared;
  }

  Duration timeout() {
    return timeout;
  }

  // --- Produce ----------------------------------------------------------------------------------

  /** Stores one message with these headers, and returns its id; see the other form. */
  public String enqueue(String queue, Map<String, String> headers, byte[] payload)
      throws FilaException {
    return enqueue(EnqueueMessage.to(queue).headers(headers).payload(payload).build());
  }

  /**
   * Stores one message and returns its id.
   *
   * <p>{@link UnavailableException}, {@link DeadlineExceededException} and {@link
   * StorageFailedException} leave open whether it was stored. With an idempotency key it is sent
   * again while the broker is away, up to the deadline.
   */
  public String enqueue(EnqueueMessage message) throws FilaException {
    return Connection.await(enqueueAsync(message));
  }

  /**
   * Like {@link #enqueue}, without waiting for the answer. It waits, for no longer than the
   * client's timeout, while {@link FilaClientBuilder#maxBufferedBytes} wait to be sent.
   */
  public CompletableFuture<String> enqueueAsync(EnqueueMessage message) {
    Map<String, String> trace = Tracing.current();
    return shared.singles.enqueue(Wire.enqueue(message, trace), timeout, trace);
  }

  /**
   * Stores many messages in order, possibly in several queues; one result per message.
   *
   * <p>They travel in as few requests as fit, one after the other, each with its own deadline. A
   * request that fails as a whole fails its messages and all that follow; it is sent again while
   * the broker is away if all its messages have idempotency keys.
   */
  public List<EnqueueResult> enqueueMany(Iterable<EnqueueMessage> messages) throws FilaException {
    return shared.batches.enqueue(messages, timeout);
  }

  // --- Consume ----------------------------------------------------------------------------------

  /** Messages of a queue as they become ready; see the other form. */
  public Consumer consume(String queue) throws FilaException {
    return consume(queue, ConsumeOptions.DEFAULT);
  }

  /**
   * Messages of a queue as they become ready, for as long as the consumer is open. The stream is
   * opened by the first wish for a message, which is also where an unknown queue is reported.
   */
  public Consumer consume(String queue, ConsumeOptions options) throws FilaException {
    return consume(queue, options, false);
  }

  /** One whose messages are held, and kept, until they are let go. */
  Consumer consumeHeld(String queue, ConsumeOptions options) throws FilaException {
    return consume(queue, options, true);
  }

  private Consumer consume(String queue, ConsumeOptions options, boolean isHeldByTaker)
      throws FilaException {
    ConsumeStream stream =
        new ConsumeStream(
            connection,
            this,
            Wire.consume(queue, options),
            options.extendLeases(),
            isHeldByTaker);
    Consumer consumer = new Consumer(connection, stream, shared.consumers);
    shared.consumers.add(consumer);
    // Not before: a client that is closed meanwhile has to find it in the set.
    connection.checkOpen();
    return consumer;
  }

  /** A worker that handles a queue's messages one by one; nothing happens before it runs. */
  public WorkerBuilder<ConsumeMessage> worker(String queue, Handler<ConsumeMessage> handler) {
    return new WorkerBuilder<>(this, queue, 1, messages -> messages.get(0), handler);
  }

  /**
   * A worker whose handler gets up to so many messages at a time, of what is there. Its outcome is
   * that of all that it did not settle itself.
   */
  public WorkerBuilder<List<ConsumeMessage>> batchWorker(
      String queue, int batchSize, Handler<List<ConsumeMessage>> handler) {
    return new WorkerBuilder<>(this, queue, batchSize, messages -> messages, handler);
  }

  /** Leases up to a number of messages, waiting up to a time for the first; may return none. */
  public List<ConsumeMessage> receive(String queue, int maxMessages, Duration wait)
      throws FilaException {
    return receive(queue, maxMessages, wait, null);
  }

  /** Like the other form, with leases of another length than the queue's visibility timeout. */
  public List<ConsumeMessage> receive(
      String queue, int maxMessages, Duration wait, Duration visibilityTimeout)
      throws FilaException {
    return Connection.await(receiveAsync(queue, maxMessages, wait, visibilityTimeout));
  }

  /** Like {@link #receive}, without waiting for the answer; null times are the broker's choice. */
  public CompletableFuture<List<ConsumeMessage>> receiveAsync(
      String queue, int maxMessages, Duration wait, Duration visibilityTimeout) {
    // The broker may use all of the wait before it begins to answer.
    return connection.begin(
        Wire.receive(queue, maxMessages, wait, visibilityTimeout, this),
        wait == null ? timeout : timeout.plus(wait));
  }

  /**
   * Reports that a leased message was processed; it is gone.
   *
   * <p>Fails with {@link MessageNotFoundException} when it is not leased, and with {@link
   * LeaseExpiredException} when the token is of an earlier delivery. With a null token the message
   * id alone decides. With one it is sent again while the broker is away, up to the deadline.
   */
  public void ack(String queue, String messageId, String leaseToken) throws FilaException {
    Connection.await(ackAsync(queue, messageId, leaseToken));
  }

  /** Like {@link #ack}, without waiting. */
  public CompletableFuture<Void> ackAsync(String queue, String messageId, String leaseToken) {
    return ackAsync(Wire.ack(queue, messageId, leaseToken, 0));
  }

  CompletableFuture<Void> ackAsync(Item<AckRequest> item) {
    return shared.singles.ack(item, timeout, true);
  }

  /**
   * Acks many messages; one result for each, in order. Those that came together, and are acked
   * together, travel as one.
   */
  public List<SettleResult> ackMany(Iterable<? extends Message> messages) throws FilaException {
    return shared.batches.ack(messages, timeout);
  }

  /**
   * Acks what is left of a grant, but for some ids: all messages that were delivered under one
   * lease token. Returns how many; fails with {@link LeaseExpiredException} when none is left.
   */
  public int ackGrant(String queue, String leaseToken, Collection<String> exceptMessageIds)
      throws FilaException {
    var settlement = Grants.ack(queue, leaseToken, exceptMessageIds);
    return shared.batches.settle(settlement, timeout).messages();
  }

  /** Nacks what is left of a grant, each message as {@link #nack}. As {@link #ackGrant} else. */
  public int nackGrant(
      String queue,
      String leaseToken,
      String error,
      NackOptions options,
      Collection<String> exceptMessageIds)
      throws FilaException {
    var settlement = Grants.nack(queue, leaseToken, error, options, exceptMessageIds);
    return shared.batches.settle(settlement, timeout).messages();
  }

  /** Prolongs what is left of a grant, as {@link #extend}. As {@link #ackGrant} else. */
  public Instant extendGrant(
      String queue, String leaseToken, Duration duration, Collection<String> exceptMessageIds)
      throws FilaException {
    var settlement = Grants.extend(queue, leaseToken, duration, exceptMessageIds);
    return shared.batches.settle(settlement, timeout).leaseExpiresAt();
  }

  /**
   * Reports that processing failed: the message is retried or dead-lettered; with options it is
   * backpressure instead. Fails as {@link #ack} does.
   */
  public void nack(
      String queue, String messageId, String leaseToken, String error, NackOptions options)
      throws FilaException {
    Connection.await(nackAsync(queue, messageId, leaseToken, error, options));
  }

  /** Like {@link #nack}, without waiting for the answer. */
  public CompletableFuture<Void> nackAsync(
      String queue, String messageId, String leaseToken, String error, NackOptions options) {
    return shared.singles.nack(
        Wire.nack(queue, messageId, leaseToken, error, options), timeout, true);
  }

  /** Nacks many messages; one result for each, in order. */
  public List<SettleResult> nackMany(Iterable<? extends Message> messages, String error)
      throws FilaException {
    return shared.batches.nack(messages, error, timeout);
  }

  /**
   * Prolongs a lease to a time from now, null for the queue's visibility timeout, and returns its
   * new end. Fails as {@link #ack} does.
   */
  public Instant extend(String queue, String messageId, String leaseToken, Duration duration)
      throws FilaException {
    return Connection.await(
        shared.singles.extend(Wire.extend(queue, messageId, leaseToken, duration), timeout));
  }

  /** Prolongs many leases, as {@link #extend}; one result for each, in order. */
  public List<ExtendResult> extendMany(Iterable<? extends Message> messages, Duration duration)
      throws FilaException {
    return shared.batches.extend(messages, duration, timeout);
  }

  // --- Queues -----------------------------------------------------------------------------------

  /** Creates a queue and its dead-letter queue, and returns the latter's name. */
  public String createQueue(String name) throws FilaException {
    return createQueue(name, QueueSettings.NONE);
  }

  /** Like the other form, with settings. */
  public String createQueue(String name, QueueSettings settings) throws FilaException {
    return connection.call(Admin.createQueue(name, settings), timeout);
  }

  /** Creates a queue unless it is there; see the other form. */
  public String ensureQueue(String name) throws FilaException {
    return ensureQueue(name, QueueSettings.NONE);
  }

  /**
   * Creates a queue, or is content if it is there with these settings, and returns its dead-letter
   * queue's name. Fails with {@link QueueAlreadyExistsException}, which names what differs, and
   * never changes a queue. Settings that are not set are not compared.
   */
  public String ensureQueue(String name, QueueSettings settings) throws FilaException {
    return QueueSetup.ensure(connection, name, settings, timeout);
  }

  /** Changes the settings that are set, and returns all of them. */
  public QueueConfig updateQueue(String queue, QueueSettings settings) throws FilaException {
    return connection.call(Admin.updateQueue(queue, settings), timeout);
  }

  /** Removes a queue with everything in it and its dead letters; returns how many went. */
  public DeletedQueue deleteQueue(String queue) throws FilaException {
    return connection.call(Admin.deleteQueue(queue, false), timeout);
  }

  /** Removes a queue with everything in it and leaves its dead letters; returns how many went. */
  public DeletedQueue deleteQueueKeepingDeadLetters(String queue) throws FilaException {
    return connection.call(Admin.deleteQueue(queue, true), timeout);
  }

  /** All queues by name. */
  public List<QueueInfo> listQueues() throws FilaException {
    return connection.call(Admin.listQueues(), timeout);
  }

  /** Counts, scheduling state and settings of a queue. */
  public QueueStats stats(String queue) throws FilaException {
    return stats(queue, 0);
  }

  /** Like the other form, with a number of fairness keys to list, busiest first; 0 means 100. */
  public QueueStats stats(String queue, int maxKeys) throws FilaException {
    return connection.call(Admin.stats(queue, maxKeys), timeout);
  }

  /** Shows messages without leasing them, oldest first. */
  public PeekPage peek(String queue, PeekOptions options) throws FilaException {
    return connection.call(Admin.peek(queue, options), timeout);
  }

  /** Drops pending and delayed messages, of a fairness key if not null, and returns how many. */
  public long purge(String queue, String fairnessKey) throws FilaException {
    return connection.call(Admin.purge(queue, fairnessKey), timeout);
  }

  /** Stops deliveries of a queue, or of one fairness key if not null; enqueueing goes on. */
  public void pause(String queue, String fairnessKey) throws FilaException {
    connection.call(Admin.pause(queue, fairnessKey), timeout);
  }

  /** Starts deliveries of a queue, or of one fairness key if not null, again. */
  public void resume(String queue, String fairnessKey) throws FilaException {
    connection.call(Admin.resume(queue, fairnessKey), timeout);
  }

  /** Moves dead letters back to where they came from, oldest first, and returns how many. */
  public long redrive(String dlq, RedriveOptions options) throws FilaException {
    return connection.call(Admin.redrive(dlq, options), timeout);
  }

  /** Drops one message; fails with {@link MessageLeasedException} when it is leased. */
  public void cancel(String queue, String messageId) throws FilaException {
    connection.call(Admin.cancel(queue, messageId), timeout);
  }

  /** Says why a fairness key waits, and for how long. */
  public Explanation explainKey(String queue, String fairnessKey) throws FilaException {
    return connection.call(Admin.explain(queue, fairnessKey, null), timeout);
  }

  /** Says why a message waits, and for how long. */
  public Explanation explainMessage(String queue, String messageId) throws FilaException {
    return connection.call(Admin.explain(queue, null, messageId), timeout);
  }

  // --- Throttle keys ----------------------------------------------------------------------------

  /** Throttle keys that are configured or in use. */
  public ThrottlePage listThrottles(ThrottleFilter filter) throws FilaException {
    return connection.call(Admin.listThrottles(filter), timeout);
  }

  /** Stops deliveries with a throttle key in all queues, until it is resumed. */
  public void pauseThrottle(String key) throws FilaException {
    pauseThrottle(key, null);
  }

  /** Like the other form, for a time. */
  public void pauseThrottle(String key, Duration duration) throws FilaException {
    connection.call(Admin.pauseThrottle(key, duration), timeout);
  }

  /** Starts deliveries with a throttle key again, whoever stopped them. */
  public void resumeThrottle(String key) throws FilaException {
    connection.call(Admin.resumeThrottle(key), timeout);
  }

  // --- Runtime configuration --------------------------------------------------------------------

  /**
   * Sets one entry, in force at once; limits such as {@code throttle:<key>:rate} are entries. An
   * empty value removes the entry.
   */
  public void setConfig(String key, String value) throws FilaException {
    connection.call(Admin.setConfig(key, value), timeout);
  }

  /** Sets several entries together, all or none; an empty value removes its entry. */
  public void setConfigAll(Map<String, String> entries) throws FilaException {
    connection.call(Admin.setConfigAll(entries), timeout);
  }

  /** Reads one entry; fails with {@link ConfigNotFoundException} when there is none. */
  public String getConfig(String key) throws FilaException {
    return connection.call(Admin.getConfig(key), timeout);
  }

  /** Removes one entry, and the limit that it set. */
  public void deleteConfig(String key) throws FilaException {
    connection.call(Admin.deleteConfig(key), timeout);
  }

  /** The entries whose keys start with a prefix, by key. */
  public Map<String, String> listConfig(String prefix) throws FilaException {
    return connection.call(Admin.listConfig(prefix), timeout);
  }

  // --- API keys ---------------------------------------------------------------------------------

  /** Creates an API key that does not expire, and returns its secret, this once. */
  public NewApiKey createApiKey(String name, List<AclEntry> acl) throws FilaException {
    return createApiKey(name, acl, null, false);
  }

  /** Like the other form, with a time at which it stops working, or for one who may do anything. */
  public NewApiKey createApiKey(
      String name, List<AclEntry> acl, Instant expiresAt, boolean isSuperadmin)
      throws FilaException {
    return connection.call(Access.createApiKey(name, acl, expiresAt, isSuperadmin), timeout);
  }

  /** Makes an API key useless at once. */
  public void revokeApiKey(String keyId) throws FilaException {
    connection.call(Access.revokeApiKey(keyId), timeout);
  }

  /** All API keys, without secrets. */
  public List<ApiKeyInfo> listApiKeys() throws FilaException {
    return connection.call(Access.listApiKeys(), timeout);
  }

  /** Replaces what an API key may do. */
  public void setAcl(String keyId, List<AclEntry> acl) throws FilaException {
    connection.call(Access.setAcl(keyId, acl), timeout);
  }

  /** Reads what an API key may do. */
  public Acl getAcl(String keyId) throws FilaException {
    return connection.call(Access.getAcl(keyId), timeout);
  }
}
