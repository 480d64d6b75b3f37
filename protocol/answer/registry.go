package answer

import "github.com/kvip/kvip/protocol/wire"

// answerer answers requests of one key from memory.
type answerer func(*Set, *Out, *Request) (Verdict, wire.Fault)

// Keys are the requests that kvip answers itself, each with the highest version that it encodes. A new one is one file,
// one line here and one in answerers, and golden files made by `make golden`.
var Keys = map[int16]int16{
	wire.KeyMetadata:        13,
	wire.KeyApiVersions:     5,
	wire.KeyDescribeCluster: 2,
}

// answerers is indexed by key: a map would cost a hash a lookup.
var answerers = [...]answerer{
	wire.KeyMetadata:        answerMetadata,
	wire.KeyApiVersions:     answerApiVersions,
	wire.KeyDescribeCluster: answerDescribeCluster,
}

// Local says whether requests of that key are answered here.
func Local(key int16) bool {
	return key >= 0 && int(key) < len(answerers) && answerers[key] != nil
}
