package wire

// ApiVersionsRequest is an ApiVersions request (key 18), versions 0-5, parsed in place.
type ApiVersionsRequest struct {
	// SoftwareName and SoftwareVersion alias the frame (v3+, KIP-511).
	SoftwareName, SoftwareVersion []byte
	// HasClusterID and HasNodeID say that the client names the broker it believes it talks to (v5, KIP-1242).
	HasClusterID, HasNodeID bool
}

// ParseApiVersions reads the body of an ApiVersions request of a version from 0 to 5.
func ParseApiVersions(body []byte, version int16, tagLimit int) (ApiVersionsRequest, Fault) {
	var q ApiVersionsRequest
	if version < 3 {
		return q, OK
	}
	r := reader{b: body}
	q.SoftwareName = r.str(true)
	q.SoftwareVersion = r.str(true)
	if version >= 5 {
		_, q.HasClusterID = r.nullable(true)
		q.HasNodeID = r.int32() != -1
	}
	r.tags(tagLimit)
	if r.bad {
		return q, FaultBody
	}
	return q, OK
}

// ValidSoftware says whether s is what KIP-511 lets a client call itself or its version:
// [a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?
func ValidSoftware(s []byte) bool {
	if len(s) == 0 || !alphanumeric(s[0]) || !alphanumeric(s[len(s)-1]) {
		return false
	}
	for _, c := range s {
		if !alphanumeric(c) && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
