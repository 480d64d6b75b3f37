package provider

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// newTransport returns a transport that notices a registry whose machine is gone within about 30 s, even in a read that
// may wait for minutes.
func newTransport() *http.Transport {
	dialer := net.Dialer{
		Timeout:         3 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// newHTTPClient bounds answers to limit bytes and follows no redirect to another host: it would be handed the token.
func newHTTPClient(rt http.RoundTripper, limit int64) *http.Client {
	return &http.Client{
		Transport: bounded{next: rt, limit: limit},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if first := via[0].URL; req.URL.Host != first.Host || req.URL.Scheme != first.Scheme || len(via) > 3 {
				return fmt.Errorf("refused to follow a redirect to %s://%.100s", req.URL.Scheme, req.URL.Host)
			}
			return nil
		},
	}
}

// bounded makes a body that is longer than limit fail where it passes it, whatever its header says.
type bounded struct {
	next  http.RoundTripper
	limit int64
}

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: b.limit, limit: b.limit}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left, limit int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		// At the limit exactly only the end may follow.
		if n, err := b.ReadCloser.Read(p[:min(1, len(p))]); n == 0 {
			return 0, err
		}
		return 0, fmt.Errorf("the answer is longer than %d MiB", b.limit>>20)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
