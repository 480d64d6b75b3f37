package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/healthcheck"
)

// selfListed is the check that the broker knows itself to be in the cluster: a starting or stopping one does not
// (KAFKA-7924). It is itself when the list has its registered address, or else the node id that the registry gives, or
// else a name that resolves to the address that was dialled, with the same port.
func selfListed(ctx context.Context, v *visit) (healthcheck.Reason, string) {
	l := v.conn.list
	if b := l.byID(l.self); b != nil && b.Port == int32(v.port) && strings.EqualFold(b.Host, v.host) {
		return v.is(b, "as registered")
	}
	if b := l.byAddr(v.host, v.port); b != nil {
		return v.is(b, "as registered")
	}
	if v.cfg.NodeID >= 0 {
		if b := l.byID(v.cfg.NodeID); b != nil {
			return v.is(b, "by the registry's node id")
		}
		return ReasonNotListed, fmt.Sprintf("the broker's list has neither %s nor node %d", v.cfg.Addr, v.cfg.NodeID)
	}
	b, err := v.byDialled(ctx, l)
	if b != nil {
		return v.is(b, "by its address")
	}
	detail := fmt.Sprintf("the broker's list of %d has no %s and no name for %s; register the advertised host:port, or meta node_id",
		len(l.brokers), v.cfg.Addr, v.conn.RemoteAddr())
	if err != nil {
		detail += fmt.Sprintf(" (not all advertised names could be resolved: %.200v)", err)
	}
	return ReasonNotListed, detail
}

// is notes who the broker is.
func (v *visit) is(b *kmsg.MetadataResponseBroker, how string) (healthcheck.Reason, string) {
	v.conn.list.self, v.res.NodeID = b.NodeID, b.NodeID
	return v.ok(func() string {
		return fmt.Sprintf("node %d, advertised as %.128q port %d, %s", b.NodeID, b.Host, b.Port, how)
	})
}

func (l *listing) byID(id int32) *kmsg.MetadataResponseBroker {
	i, ok := slices.BinarySearchFunc(l.brokers, id, func(b kmsg.MetadataResponseBroker, id int32) int { return int(b.NodeID) - int(id) })
	if !ok {
		return nil
	}
	return &l.brokers[i]
}

// byAddr finds an advertised host and port, however the host is spelled.
func (l *listing) byAddr(host string, port uint16) *kmsg.MetadataResponseBroker {
	ip, _ := netip.ParseAddr(host)
	i := slices.IndexFunc(l.brokers, func(b kmsg.MetadataResponseBroker) bool {
		if b.Port != int32(port) {
			return false
		}
		if strings.EqualFold(b.Host, host) {
			return true
		}
		other, err := netip.ParseAddr(b.Host)
		return err == nil && ip.IsValid() && other.Unmap() == ip.Unmap()
	})
	if i < 0 {
		return nil
	}
	return &l.brokers[i]
}

// byDialled finds the broker whose advertised host has the address that the connection goes to. err says that it may be
// one whose name could not be resolved.
func (v *visit) byDialled(ctx context.Context, l *listing) (*kmsg.MetadataResponseBroker, error) {
	remote, err := netip.ParseAddrPort(v.conn.RemoteAddr().String())
	if err != nil {
		return nil, err
	}
	if b := l.byAddr(remote.Addr().Unmap().String(), v.port); b != nil {
		return b, nil
	}
	// Names cost look-ups, so the one that it was the last time comes first.
	order := make([]*kmsg.MetadataResponseBroker, 0, len(l.brokers)+1)
	if b := l.byID(l.self); b != nil {
		order = append(order, b)
	}
	for i := range l.brokers {
		order = append(order, &l.brokers[i])
	}
	var failed error
	for _, b := range order {
		if b.Port != int32(v.port) {
			continue
		}
		if ctx.Err() != nil {
			return nil, errors.Join(failed, ctx.Err())
		}
		addrs, err := v.cfg.Resolve(ctx, b.Host)
		if err != nil {
			failed = err
			continue
		}
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Unmap() == remote.Addr().Unmap() }) {
			return b, nil
		}
	}
	return nil, failed
}
