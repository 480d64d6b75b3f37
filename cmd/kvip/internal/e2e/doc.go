// Package e2e has the tests that run the kvip binary between real clients, a real Kafka and a real Consul, started by
// loadtest/lab. They carry the build tag e2e: `make test` runs them in a short form, `make matrix` in full.
package e2e
