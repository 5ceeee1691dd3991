// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.examples;

import dev.faisca.fila.EnqueueMessage;
import dev.faisca.fila.FilaClient;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;

/** Enqueues three greetings, sees them handled by a worker of the same application, and ends. */
@SpringBootApplication
public class Greetings {
  private static final List<String> NAMES = List.of("Ada", "Grace", "Radia");

  /** One client for the whole application. Spring closes it after what uses it. */
  @Bean
  FilaClient filaClient(@Value("${fila.target}") String target) {
    return FilaClient.builder().target(target).build();
  }

  /** Counts what is left to handle; a service that runs for ever needs none. */
  @Bean
  CountDownLatch unhandled() {
    return new CountDownLatch(NAMES.size());
  }

  @Bean
  GreetingWorker greetingWorker(
      FilaClient client, @Value("${fila.queue}") String queue, CountDownLatch unhandled) {
    return new GreetingWorker(
        client,
        queue,
        message -> {
          System.out.printf("hello %s%n", message.text());
          unhandled.countDown();
        });
  }

  @Bean
  CommandLineRunner producer(
      FilaClient client, @Value("${fila.queue}") String queue, CountDownLatch unhandled) {
    return arguments -> {
      for (String name : NAMES) {
        client.enqueue(EnqueueMessage.to(queue).text(name).build());
      }
      unhandled.await();
    };
  }

  public static void main(String[] arguments) {
    SpringApplication.run(Greetings.class, arguments).close();
  }
}
