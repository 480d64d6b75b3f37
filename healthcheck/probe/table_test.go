package probe

import (
	"bytes"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A table is handed out to clients while the next probe reads into the buffer that it came in.
func TestATableOutlivesTheBufferThatItWasReadFrom(t *testing.T) {
	answer := kmsg.NewApiVersionsResponse()
	answer.Version = 4
	key := kmsg.ApiVersionsResponseApiKey{ApiKey: 3, MaxVersion: 13}
	key.UnknownTags.Set(7, []byte("of a key"))
	answer.ApiKeys = append(answer.ApiKeys, key)
	v := &visit{Prober: &Prober{}}
	buf := answer.AppendTo(nil)
	if lower, err := v.takeTable(4, buf); lower >= 0 || err != nil {
		t.Fatal(lower, err)
	}
	said := v.table.apis.Response().AppendTo(nil)
	clear(buf)
	if now := v.table.apis.Response().AppendTo(nil); !bytes.Equal(now, said) {
		t.Errorf("it was\n%x, and is\n%x", said, now)
	}
}
