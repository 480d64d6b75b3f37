package lab

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func TestASecuredClusterLetsInWhoeverHasTheKeysAndNobodyElse(t *testing.T) {
	cfg, keys, err := KafkaConfig{Nodes: 1}.Secured(Security{
		Mechanisms: []string{Plain, ScramSHA256, ScramSHA512}, Users: map[string]string{"ann": "secret"}, TLS: true, ClientCerts: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	k := startKafkaT(t, StartKafka, cfg)
	ping := func(login sasl.Mechanism, withCert bool) error {
		tlsConfig, err := keys.TLSConfig()
		if err != nil {
			t.Fatal(err)
		}
		if !withCert {
			tlsConfig.Certificates = nil
		}
		client, err := kgo.NewClient(kgo.SeedBrokers(k.Bootstrap()...), kgo.DialTLSConfig(tlsConfig), kgo.SASL(login), kgo.RequestRetries(0))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return client.Ping(ctx)
	}
	ann := scram.Auth{User: "ann", Pass: "secret"}
	for name, login := range map[string]sasl.Mechanism{
		Plain: plain.Auth{User: "ann", Pass: "secret"}.AsMechanism(), ScramSHA256: ann.AsSha256Mechanism(), ScramSHA512: ann.AsSha512Mechanism(),
	} {
		if err := ping(login, true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ping(plain.Auth{User: "ann", Pass: "guess"}.AsMechanism(), true) == nil {
		t.Error("a wrong password was let in")
	}
	if ping(ann.AsSha256Mechanism(), false) == nil {
		t.Error("a client without a certificate was let in")
	}
}

func TestSecurityThatCannotWorkIsRefused(t *testing.T) {
	users := map[string]string{"ann": "secret"}
	for want, s := range map[string]Security{
		"is none of":         {Mechanisms: []string{"GSSAPI"}, Users: users},
		"need each other":    {Mechanisms: []string{Plain}},
		"letters and":        {Mechanisms: []string{Plain}, Users: map[string]string{"ann": `a"b`}},
		"needs Security.TLS": {ClientCerts: true},
	} {
		if _, _, err := (KafkaConfig{}).Secured(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q in it", s, err, want)
		}
	}
	cfg := KafkaConfig{ExtraProps: map[string]string{"num.io.threads": "4"}}
	secured, keys, err := cfg.Secured(Security{Mechanisms: []string{Plain}, Users: users})
	if err != nil || keys != nil || len(cfg.ExtraProps) != 1 || secured.ExtraProps["num.io.threads"] != "4" {
		t.Errorf("%v, keys %v, %v, %v", err, keys, cfg.ExtraProps, secured.ExtraProps)
	}
	if c, err := keys.TLSConfig(); c != nil || err != nil {
		t.Errorf("TLS of a cluster without: %v, %v", c, err)
	}
}
