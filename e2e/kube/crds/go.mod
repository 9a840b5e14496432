// Modules that hold CRDs. Nothing of them is compiled; go.sum makes sure that they are what they were.
module pilotfish/crds

go 1.26.0

require (
	istio.io/api v1.31.1
	sigs.k8s.io/gateway-api v1.6.0
)
