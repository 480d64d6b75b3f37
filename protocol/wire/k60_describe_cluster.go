package wire

// DescribeClusterRequest is a DescribeCluster request (key 60), versions 0-2 (KIP-700, KIP-919, KIP-1073).
type DescribeClusterRequest struct {
	// Ops asks for the cluster's authorized operations, which depend on who asks.
	Ops bool
	// EndpointType is 1 for brokers, which is what v0 means, 2 for controllers.
	EndpointType int8
	// Fenced asks for fenced brokers too.
	Fenced bool
}

// ParseDescribeCluster reads the body of a DescribeCluster request of a version from 0 to 2.
func ParseDescribeCluster(body []byte, version int16, tagLimit int) (DescribeClusterRequest, Fault) {
	q := DescribeClusterRequest{EndpointType: 1}
	r := reader{b: body}
	q.Ops = r.bool()
	if version >= 1 {
		q.EndpointType = r.int8()
	}
	if version >= 2 {
		q.Fenced = r.bool()
	}
	r.tags(tagLimit)
	if r.bad {
		return q, FaultBody
	}
	return q, OK
}
