// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.TlsChannelCredentials;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.net.Socket;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.Principal;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.cert.CertificateException;
import java.security.cert.X509Certificate;
import java.util.function.Supplier;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509ExtendedKeyManager;
import javax.net.ssl.X509ExtendedTrustManager;

/**
 * Whom a client trusts and how it proves itself, looked up for every connection that is made. What
 * cannot be read at that moment, as in the middle of a rotation, leaves in force what was read
 * before.
 */
final class Certificates {
  private Certificates() {}

  /** Fails with IllegalArgumentException when something cannot be used now. */
  static ChannelCredentials credentials(TlsOptions tls) {
    if (tls == null) {
      return InsecureChannelCredentials.create();
    }
    TlsChannelCredentials.Builder credentials = TlsChannelCredentials.newBuilder();
    if (tls.ca() != null) {
      credentials.trustManager(new Trust(tls.ca()));
    }
    if (tls.cert() != null) {
      credentials.keyManager(new Proof(tls.cert(), tls.key()));
    }
    return credentials.build();
  }

  /** What was read last. */
  private static final class Current<T> {
    private final Supplier<T> read;
    private T value;

    Current(Supplier<T> read) {
      this.read = read;
      this.value = read.get();
    }

    synchronized T get() {
      try {
        value = read.get();
      } catch (IllegalArgumentException unreadable) {
        Consumer.LOG.log(
            Level.WARNING, "{0}; what was read before stays in force", unreadable.getMessage());
      }
      return value;
    }
  }

  /** Who may be the broker. */
  private static final class Trust extends X509ExtendedTrustManager {
    private final Current<X509ExtendedTrustManager> current;

    Trust(Pem ca) {
      this.current = new Current<>(() -> trusting(ca.certificates()));
    }

    private static X509ExtendedTrustManager trusting(X509Certificate[] authorities) {
      try {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        for (int index = 0; index < authorities.length; index++) {
          store.setCertificateEntry(String.valueOf(index), authorities[index]);
        }
        TrustManagerFactory factory =
            TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return (X509ExtendedTrustManager) factory.getTrustManagers()[0];
      } catch (GeneralSecurityException | IOException broken) {
        throw new IllegalArgumentException("tls ca cannot be used: " + broken, broken);
      }
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String authType, SSLEngine engine)
        throws CertificateException {
      current.get().checkServerTrusted(chain, authType, engine);
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String authType, Socket socket)
        throws CertificateException {
      current.get().checkServerTrusted(chain, authType, socket);
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String authType)
        throws CertificateException {
      // Without a connection nobody could check whom the certificate names.
      throw new CertificateException("a certificate is checked with its connection");
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String authType, SSLEngine engine)
        throws CertificateException {
      checkClientTrusted(chain, authType);
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String authType, Socket socket)
        throws CertificateException {
      checkClientTrusted(chain, authType);
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String authType)
        throws CertificateException {
      throw new CertificateException("this is a client");
    }

    @Override
    public X509Certificate[] getAcceptedIssuers() {
      return current.get().getAcceptedIssuers();
    }
  }

  /** A certificate and its key. */
  private record Pair(String alias, X509Certificate[] chain, PrivateKey key) {

    /** Fails when they do not belong together, for then a connection would fail and not say why. */
    static Pair read(Pem cert, Pem key) {
      X509Certificate[] chain = cert.certificates();
      String algorithm = chain[0].getPublicKey().getAlgorithm();
      PrivateKey mine = key.privateKey(algorithm);
      String scheme =
          switch (algorithm) {
            case "RSA" -> "SHA256withRSA";
            case "EC" -> "SHA256withECDSA";
            default -> algorithm;
          };
      try {
        byte[] text = chain[0].getEncoded();
        Signature signing = Signature.getInstance(scheme);
        signing.initSign(mine);
        signing.update(text);
        Signature verifying = Signature.getInstance(scheme);
        verifying.initVerify(chain[0].getPublicKey());
        verifying.update(text);
        if (!verifying.verify(signing.sign())) {
          throw new IllegalArgumentException(
              "tls %s is not the key of tls %s".formatted(key, cert));
        }
      } catch (GeneralSecurityException broken) {
        String text = "tls %s and %s cannot be used: %s".formatted(cert, key, broken.getMessage());
        throw new IllegalArgumentException(text, broken);
      }
      // It names this certificate, so that a connection gets the key that goes with its chain.
      return new Pair(chain[0].getSerialNumber() + "/" + chain[0].hashCode(), chain, mine);
    }
  }

  /** Who this client is. */
  private static final class Proof extends X509ExtendedKeyManager {
    private final Current<Pair> current;
    // Those of connections that are being made: a pair may be replaced between two questions.
    private volatile Pair chosen;
    private volatile Pair earlier;

    Proof(Pem cert, Pem key) {
      this.current = new Current<>(() -> Pair.read(cert, key));
    }

    private synchronized String choose() {
      Pair pair = current.get();
      if (chosen == null || !chosen.alias.equals(pair.alias)) {
        earlier = chosen;
        chosen = pair;
      }
      return pair.alias;
    }

    private Pair of(String alias) {
      Pair last = chosen;
      return last.alias.equals(alias) ? last : earlier;
    }

    @Override
    public String chooseEngineClientAlias(String[] types, Principal[] issuers, SSLEngine engine) {
      return choose();
    }

    @Override
    public String chooseClientAlias(String[] types, Principal[] issuers, Socket socket) {
      return choose();
    }

    @Override
    public X509Certificate[] getCertificateChain(String alias) {
      return of(alias).chain;
    }

    @Override
    public PrivateKey getPrivateKey(String alias) {
      return of(alias).key;
    }

    @Override
    public String[] getClientAliases(String type, Principal[] issuers) {
      return new String[] {choose()};
    }

    @Override
    public String[] getServerAliases(String type, Principal[] issuers) {
      return new String[0];
    }

    @Override
    public String chooseServerAlias(String type, Principal[] issuers, Socket socket) {
      return null;
    }
  }
}
