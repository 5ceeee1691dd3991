// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.Attributes;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.NameResolverRegistry;
import io.grpc.Status;
import io.grpc.StatusOr;
import java.net.URI;
import java.net.URISyntaxException;
import java.util.ArrayList;
import java.util.List;

/**
 * The addresses of a cluster's members, in the order in which they were given; gRPC tries them so.
 * Each is resolved as gRPC would resolve it alone, and held to its own name by TLS.
 */
final class Members extends NameResolver {
  static final String SCHEME = "fila-members";

  private final List<Member> members = new ArrayList<>();
  private Listener2 listener;

  private Members(List<String> targets, Factory factory, Args args) {
    for (String target : targets) {
      members.add(
          new Member(target, factory.newNameResolver(uri("dns", target), args), args));
    }
  }

  static URI uri(List<String> targets) {
    return uri(SCHEME, String.join(",", targets));
  }

  private static URI uri(String scheme, String path) {
    try {
      return new URI(scheme, "", "/" + path, null);
    } catch (URISyntaxException impossible) {
      throw new IllegalArgumentException("\"%s\" is no address".formatted(path), impossible);
    }
  }

  /** Makes the scheme known to gRPC. */
  static void register() {
    NameResolverRegistry.getDefaultRegistry().register(new Provider());
  }

  @Override
  public String getServiceAuthority() {
    return members.get(0).target;
  }

  @Override
  public void start(Listener2 listener) {
    this.listener = listener;
    members.forEach(member -> member.resolver.start(member));
  }

  @Override
  public void refresh() {
    members.forEach(member -> member.resolver.refresh());
  }

  @Override
  public void shutdown() {
    members.forEach(member -> member.resolver.shutdown());
  }

  /** Passes on what is known, once every member is; fails only if none is. */
  private Status tell() {
    List<EquivalentAddressGroup> all = new ArrayList<>();
    Status failure = null;
    for (Member member : members) {
      if (member.found == null) {
        return Status.OK;
      }
      if (member.found.hasValue()) {
        all.addAll(member.found.getValue());
      } else {
        failure = member.found.getStatus();
      }
    }
    return listener.onResult2(
        ResolutionResult.newBuilder()
            .setAddressesOrError(
                all.isEmpty() && failure != null
                    ? StatusOr.fromStatus(failure)
                    : StatusOr.fromValue(all))
            .build());
  }

  /** One address and what it is resolved to; what is here happens in gRPC's one thread. */
  private final class Member extends Listener2 {
    private final String target;
    private final NameResolver resolver;
    private final Args args;
    private StatusOr<List<EquivalentAddressGroup>> found;

    Member(String target, NameResolver resolver, Args args) {
      this.target = target;
      this.resolver = resolver;
      this.args = args;
    }

    @Override
    public Status onResult2(ResolutionResult result) {
      StatusOr<List<EquivalentAddressGroup>> addresses = result.getAddressesOrError();
      found =
          addresses.hasValue()
              ? StatusOr.fromValue(addresses.getValue().stream().map(this::named).toList())
              : addresses;
      return tell();
    }

    @Override
    public void onResult(ResolutionResult result) {
      args.getSynchronizationContext().execute(() -> onResult2(result));
    }

    @Override
    public void onError(Status error) {
      args.getSynchronizationContext()
          .execute(
              () -> {
                found = StatusOr.fromStatus(error);
                tell();
              });
    }

    private EquivalentAddressGroup named(EquivalentAddressGroup group) {
      Attributes attributes =
          group.getAttributes().toBuilder()
              .set(EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE, target)
              .build();
      return new EquivalentAddressGroup(group.getAddresses(), attributes);
    }
  }

  private static final class Provider extends NameResolverProvider {
    private static final int PRIORITY = 5;

    @Override
    protected boolean isAvailable() {
      return true;
    }

    @Override
    protected int priority() {
      return PRIORITY;
    }

    @Override
    public String getDefaultScheme() {
      return SCHEME;
    }

    @Override
    public NameResolver newNameResolver(URI target, Args args) {
      if (!SCHEME.equals(target.getScheme())) {
        return null;
      }
      List<String> targets = List.of(target.getPath().substring(1).split(","));
      return new Members(targets, NameResolverRegistry.getDefaultRegistry().asFactory(), args);
    }
  }
}
