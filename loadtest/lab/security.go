package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// SASL mechanisms that [Security] can ask for.
const (
	Plain       = "PLAIN"
	ScramSHA256 = "SCRAM-SHA-256"
	ScramSHA512 = "SCRAM-SHA-512"
)

// Security is what a cluster asks of clients. The nodes among themselves, and the lab, stay in the clear.
type Security struct {
	Mechanisms []string          // SASL; none: no login
	Users      map[string]string // password by name, for every mechanism
	TLS        bool
	// ClientCerts asks clients for a certificate of the cluster's authority (mutual TLS). It needs TLS.
	ClientCerts bool
}

// Keys are what a client of a secured cluster needs: PEM files' contents, made for this cluster and valid for a day.
type Keys struct {
	CA   []byte // trust this
	Cert []byte // of the client, for ClientCerts
	Key  []byte
}

// TLSConfig is for a client in Go; nil when the cluster is without TLS.
func (k *Keys) TLSConfig() (*tls.Config, error) {
	if k == nil {
		return nil, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(k.CA) {
		return nil, errors.New("lab: no certificate in Keys.CA")
	}
	pair, err := tls.X509KeyPair(k.Cert, k.Key)
	if err != nil {
		return nil, fmt.Errorf("lab: client certificate: %w", err)
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// WriteFiles writes ca.pem, client.pem and client.key into dir, for clients in other languages.
func (k *Keys) WriteFiles(dir string) error {
	for name, b := range map[string][]byte{"ca.pem": k.CA, "client.pem": k.Cert, "client.key": k.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	return nil
}

// Secured returns cfg with CLIENT listeners that ask for what s says, and the keys for clients when that is TLS. For KRaft
// alone: Kafka 1.1.1 reads no PEM and takes no users when it is formatted.
func (cfg KafkaConfig) Secured(s Security) (KafkaConfig, *Keys, error) {
	if err := s.check(); err != nil {
		return cfg, nil, err
	}
	props := maps.Clone(cfg.ExtraProps)
	if props == nil {
		props = map[string]string{}
	}
	cfg.ExtraProps, cfg.FormatArgs = props, slices.Clone(cfg.FormatArgs)
	protocol := "PLAINTEXT"
	if s.TLS {
		protocol = "SSL"
	}
	if len(s.Mechanisms) > 0 {
		protocol = map[bool]string{false: "SASL_PLAINTEXT", true: "SASL_SSL"}[s.TLS]
		props["sasl.enabled.mechanisms"] = strings.Join(s.Mechanisms, ",")
	}
	props["listener.security.protocol.map"] = "CLIENT:" + protocol + ",INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
	for _, mechanism := range s.Mechanisms {
		const listener = "listener.name.client."
		if mechanism == Plain {
			jaas := "org.apache.kafka.common.security.plain.PlainLoginModule required"
			for _, user := range slices.Sorted(maps.Keys(s.Users)) {
				jaas += fmt.Sprintf(` user_%s="%s"`, user, s.Users[user])
			}
			props[listener+"plain.sasl.jaas.config"] = jaas + ";"
			continue
		}
		props[listener+strings.ToLower(mechanism)+".sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		for _, user := range slices.Sorted(maps.Keys(s.Users)) {
			cfg.FormatArgs = append(cfg.FormatArgs, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, user, s.Users[user]))
		}
	}
	if !s.TLS {
		return cfg, nil, nil
	}
	keys, err := s.tls(props, cfg.AdvertisedHosts)
	return cfg, keys, err
}

func (s Security) check() error {
	for _, m := range s.Mechanisms {
		if m != Plain && m != ScramSHA256 && m != ScramSHA512 {
			return fmt.Errorf("lab: Security.Mechanisms: %q is none of %s, %s, %s", m, Plain, ScramSHA256, ScramSHA512)
		}
	}
	if len(s.Mechanisms) > 0 != (len(s.Users) > 0) {
		return errors.New("lab: Security.Users and Security.Mechanisms need each other")
	}
	for user, password := range s.Users {
		// They are written into a JAAS line and an argument of Kafka's, each with its own ways to quote.
		if user == "" || password == "" || strings.ContainsAny(user+password, "\"'\\=,[]; \n") {
			return fmt.Errorf("lab: Security.Users: name %q and its password must be letters and digits", user)
		}
	}
	if s.ClientCerts && !s.TLS {
		return errors.New("lab: Security.ClientCerts needs Security.TLS")
	}
	return nil
}

// tls makes an authority, a certificate for every node and one for clients, and sets the listener to use them (KIP-651).
func (s Security) tls(props map[string]string, hosts []string) (*Keys, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	nodeCert, nodeKey, err := ca.issue("node", append([]string{loopback, "::1", "localhost"}, hosts...))
	if err != nil {
		return nil, err
	}
	keys := &Keys{CA: ca.pem}
	if keys.Cert, keys.Key, err = ca.issue("client", nil); err != nil {
		return nil, err
	}
	const listener = "listener.name.client.ssl."
	props[listener+"keystore.type"], props[listener+"truststore.type"] = "PEM", "PEM"
	props[listener+"keystore.key"], props[listener+"keystore.certificate.chain"] = string(nodeKey), string(nodeCert)
	props[listener+"truststore.certificates"] = string(ca.pem)
	if s.ClientCerts {
		props[listener+"client.auth"] = "required"
	}
	return keys, nil
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

const certValid = 24 * time.Hour

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("lab: key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "kvip lab"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certValid),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("lab: certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("lab: certificate: %w", err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// issue makes a key and a certificate for hosts, names or addresses.
func (a *authority) issue(name string, hosts []string) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("lab: key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certValid), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if h != "" {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("lab: certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("lab: key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
}
